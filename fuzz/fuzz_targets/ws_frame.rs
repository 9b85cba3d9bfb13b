#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::ws_frame::ws_frame(data));
