#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::imports::import_dynamic_security(data));
