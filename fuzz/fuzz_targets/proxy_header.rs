#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::proxy_header::proxy_header(data));
