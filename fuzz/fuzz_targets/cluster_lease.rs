#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::cluster_lease::cluster_lease(data));
