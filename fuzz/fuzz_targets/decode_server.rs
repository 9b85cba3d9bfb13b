#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::packet::decode_server(data));
