#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::ws_upgrade::ws_upgrade(data));
