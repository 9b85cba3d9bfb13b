#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::link_hello::link_hello(data));
