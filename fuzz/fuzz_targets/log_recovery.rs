#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::log_recovery::log_recovery(data));
