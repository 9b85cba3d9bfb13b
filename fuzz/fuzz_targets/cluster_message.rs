#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::cluster_message::cluster_message(data));
