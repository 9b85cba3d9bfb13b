#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::log_recovery::log_recovery(data));
