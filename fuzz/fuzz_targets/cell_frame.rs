#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::cell_frame::cell_frame(data));
