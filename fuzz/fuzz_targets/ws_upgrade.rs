#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::ws_upgrade::ws_upgrade(data));
