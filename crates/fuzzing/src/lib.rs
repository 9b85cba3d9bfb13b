//! What the fuzzer feeds: one function per target, shared by libFuzzer (`fuzz_targets/`) and by
//! the short run on a stable compiler (`tests/short.rs`). `README.md` says how to add one.

#![forbid(unsafe_code)]

pub mod filters;
pub mod journal;
pub mod log_recovery;
pub mod mutate;
pub mod packet;
pub mod properties;
pub mod proxy_header;
pub mod ws_frame;
pub mod ws_upgrade;

/// One parser under test.
pub struct Target {
    pub name: &'static str,
    /// Takes any bytes; a panic is a find.
    pub run: fn(&[u8]),
    /// Inputs to start from, made by code so that they cannot go stale.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: [Target; 9] = [
    Target { name: "decode_client", run: packet::decode_client, seeds: packet::client_seeds },
    Target { name: "decode_server", run: packet::decode_server, seeds: packet::server_seeds },
    Target { name: "filters", run: filters::filters, seeds: filters::seeds },
    Target { name: "journal", run: journal::journal, seeds: journal::seeds },
    Target { name: "log_recovery", run: log_recovery::log_recovery, seeds: log_recovery::seeds },
    Target { name: "properties", run: properties::properties, seeds: properties::seeds },
    Target { name: "proxy_header", run: proxy_header::proxy_header, seeds: proxy_header::seeds },
    Target { name: "ws_frame", run: ws_frame::ws_frame, seeds: ws_frame::seeds },
    Target { name: "ws_upgrade", run: ws_upgrade::ws_upgrade, seeds: ws_upgrade::seeds },
];
