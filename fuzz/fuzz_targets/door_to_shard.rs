#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::door_to_shard::door_to_shard(data));
