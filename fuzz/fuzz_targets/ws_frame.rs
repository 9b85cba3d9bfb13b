#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::ws_frame::ws_frame(data));
