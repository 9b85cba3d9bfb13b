//! A clause-by-clause proof of an MQTT server, spoken in raw bytes.
//!
//! Purpose: one test per statement of MQTT 5.0 and 3.1.1 that binds a server and can be seen on the
//! wire. The packets are put together here, byte by byte, and what comes back is taken apart here.
//!
//! What it does not know: anything of this workspace. It uses no crate of ours, so that a mistake
//! in our codec cannot hide in its proof, and it can be pointed at any server:
//! `MQTT_ADDRESS=host:port cargo test -p quelea-conformance --test wire`. Without that variable it
//! starts the `quelea` binary of the same build (or the one named by `QUELEA_BIN`) on a free port.
//!
//! Where to start reading: `tests/wire/connect.rs` for what a test looks like, then [`Peer`].
//!
//! Invariants:
//! - Nothing sleeps to be in step with the server. That a packet does *not* come is shown by a
//!   fence: a later packet on the same path which arrives first ([`Peer::expect_nothing_from`]).
//! - Tests share one server and may run all at once: every client id and topic comes from
//!   [`fresh`], and no test subscribes to a bare `#`.
//! - Where a standard leaves a choice (a DISCONNECT before closing, say), a foreign server may
//!   choose; our own is held to the more telling one ([`broker::is_ours`]).

pub mod broker;
mod names;
pub mod peer;
pub mod received;
pub mod wire;

pub use names::{fresh, fresh_client};
pub use peer::Peer;
pub use received::{Connack, Message, Packet, Value};
pub use wire::{Connect, Props, Publish, Version, Will};

/// Turns one function over a protocol version into one test per clause that it proves:
/// `proves!(suback_has_the_id: V5 [mqtt_3_8_4_2] V311 [mqtt311_3_8_4_2]);`
#[macro_export]
macro_rules! proves {
    ($function:ident: $($version:ident [$($clause:ident)+])+) => {
        mod $function {
            $($(#[test] fn $clause() { super::$function($crate::Version::$version); })+)+
        }
    };
}
