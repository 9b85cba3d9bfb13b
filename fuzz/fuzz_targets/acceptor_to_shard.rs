#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::acceptor_to_shard::acceptor_to_shard(data));
