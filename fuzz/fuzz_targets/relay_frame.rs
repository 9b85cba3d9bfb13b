#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::relay_frame::relay_frame(data));
