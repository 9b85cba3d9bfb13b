#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::stream_file::stream_file(data));
