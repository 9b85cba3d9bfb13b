//! Connections between the nodes of a cluster.
//!
//! [`Links`] keeps one TCP connection with TLS for each lane and each other member. The node with
//! the smaller name connects. A connection carries packets ([`Envelope`]) of all cells that the two
//! nodes own. Order holds on a connection. What was on its way when it broke is lost: the
//! [`Lane`](broker::cells::lane::Lane)s of cells send it again.
//!
//! A peer is a node if its certificate is issued for the name of a member, and if it proves that it
//! has the cluster's secret ([`hello`]). Other peers get no reason, only the end of their
//! connection.
//!
//! Limits:
//!
//! | what | limit | at the limit |
//! |---|---|---|
//! | silence of a link | [`Options::link_ms`], default [`LINK_MS`] | closed |
//! | time of a handshake | [`HANDSHAKE_MS_MAX`] | closed |
//! | accepted connections in a handshake | [`HANDSHAKES_MAX`] | the oldest one is closed |
//! | the same of one address | [`HANDSHAKES_PER_ADDRESS_MAX`] | the new one is closed |
//! | bytes that wait on a link | [`OUTBOX_BYTES_MAX`] | the sender gets its packet back |
//! | packets that wait on a link | [`OUTBOX_PACKETS_MAX`] | the same |
//! | a packet | `broker::cells::wire::FRAME_BYTES_MAX` | closed |
//! | time between attempts to connect | [`RETRY_MS_MIN`] to [`RETRY_MS_MAX`] | |
//!
//! A link with nothing to send sends [`HEARTBEATS_PER_LIFE`] heartbeats in `link_ms`.
//!
//! A handshake costs at most 100 KB. Memory for a packet is allocated as its bytes arrive.
//!
//! Times are in milliseconds of CLOCK_BOOTTIME, which counts while the process or the machine is
//! paused. A process that was paused for longer than `link_ms` finds its links dead before it reads
//! a byte of them.
//!
//! It does **not** know cells, leases, sessions of clients, or the configuration. It writes no log:
//! the host logs the events of its [`Handler`].
//!
//! Start reading at `links.rs`, then `hello.rs`, `peers.rs`, `thread.rs`.

#![forbid(unsafe_code)]

pub mod hello;

mod connection;
mod life;
mod links;
mod outbox;
mod peers;
mod poller;
mod thread;
mod tls;
mod transport;

pub use broker::cells::wire::Envelope;
pub use life::HEARTBEATS_PER_LIFE;
pub use links::{
    Connected, Handler, LINK_MS, Links, Options, Origin, Reason, StartError, Violation,
};
pub use outbox::{OUTBOX_BYTES_MAX, OUTBOX_PACKETS_MAX, SendError, Sender};
pub use peers::{Member, RETRY_MS_MAX, RETRY_MS_MIN};
pub use poller::{Bell, HANDLER_TOKENS, Poller};
pub use thread::{HANDSHAKE_MS_MAX, HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX};
pub use tls::Files;
