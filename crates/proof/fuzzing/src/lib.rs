//! What the fuzzer feeds: one function per target, shared by libFuzzer (`fuzz_targets/`) and by
//! the short run on a stable compiler (`tests/short.rs`). `README.md` says how to add one.

#![forbid(unsafe_code)]

pub mod acceptor_to_shard;
pub mod cell_frame;
pub mod cluster_lease;
pub mod cluster_message;
pub mod filters;
pub mod imports;
pub mod journal;
pub mod link_hello;
pub mod log_recovery;
pub mod mutate;
pub mod names;
pub mod numbers;
pub mod packet;
pub mod properties;
pub mod proxy_header;
pub mod queries;
pub mod relay_frame;
pub mod rules;
pub mod stream_file;
pub mod ws_frame;
pub mod ws_upgrade;

/// What is under test: a parser, or the way from the acceptor to the shard.
pub struct Target {
    pub name: &'static str,
    /// Takes any bytes; a panic is a find.
    pub run: fn(&[u8]),
    /// What one input costs, as a multiple of a parser's: its seeds may be large.
    pub cost: usize,
    /// Inputs to start from, made by code so that they cannot go stale.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: [Target; 24] = [
    Target { name: "cell_frame", run: cell_frame::cell_frame, cost: 5, seeds: cell_frame::seeds },
    parser("cluster_lease", cluster_lease::cluster_lease, cluster_lease::seeds),
    parser("cluster_message", cluster_message::cluster_message, cluster_message::seeds),
    parser("decode_client", packet::decode_client, packet::client_seeds),
    parser("decode_server", packet::decode_server, packet::server_seeds),
    Target {
        name: "acceptor_to_shard",
        run: acceptor_to_shard::acceptor_to_shard,
        cost: 25,
        seeds: acceptor_to_shard::seeds,
    },
    parser("filters", filters::filters, filters::seeds),
    Target {
        name: "import_mosquitto",
        run: imports::import_mosquitto,
        cost: 25,
        seeds: imports::mosquitto_seeds,
    },
    Target { name: "import_emqx", run: imports::import_emqx, cost: 25, seeds: imports::emqx_seeds },
    Target {
        name: "import_dynamic_security",
        run: imports::import_dynamic_security,
        cost: 25,
        seeds: imports::dynamic_security_seeds,
    },
    parser("import_event_grid", imports::import_event_grid, imports::event_grid_seeds),
    parser("journal", journal::journal, journal::seeds),
    parser("link_hello", link_hello::link_hello, link_hello::seeds),
    Target {
        name: "log_recovery",
        run: log_recovery::log_recovery,
        cost: 10,
        seeds: log_recovery::seeds,
    },
    parser("names", names::names, names::seeds),
    parser("numbers", numbers::numbers, numbers::seeds),
    parser("properties", properties::properties, properties::seeds),
    parser("proxy_header", proxy_header::proxy_header, proxy_header::seeds),
    Target { name: "queries", run: queries::queries, cost: 5, seeds: queries::seeds },
    parser("relay_frame", relay_frame::relay_frame, relay_frame::seeds),
    Target { name: "rules", run: rules::rules, cost: 10, seeds: rules::seeds },
    parser("stream_file", stream_file::stream_file, stream_file::seeds),
    Target { name: "ws_frame", run: ws_frame::ws_frame, cost: 20, seeds: ws_frame::seeds },
    parser("ws_upgrade", ws_upgrade::ws_upgrade, ws_upgrade::seeds),
];

const fn parser(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, cost: 1, seeds }
}
