//! A laboratory: shards that one test drives step by step, and clients that speak MQTT bytes.
//!
//! It does **not** know: sockets, clocks, threads, files.
//!
//! Start reading at [`Lab`] in `lab.rs`. What clients do is in `clients.rs`, what they send in
//! `requests.rs`, what they get in `got.rs`, disks and crashes in `journals.rs`.

#![forbid(unsafe_code)]

mod cells;
mod clients;
mod got;
mod journals;
mod lab;
mod operator;
mod quick_disk;
mod requests;
pub mod wire;

pub use cells::{Cells, Way};
pub use clients::{publish_numbers, read_all, texts};
pub use got::{Got, Received};
pub use journals::journal_settings;
pub use lab::{BEGIN_MS, Conn, Lab, SCOPES, id_on};
pub use operator::TICKET;
pub use quick_disk::QuickDisk;
pub use requests::{
    admit, again, connect_packet, level, of_version, persistent, publish, queue, request,
    request_with, retained, rule, subscribe_bytes, will, window, with_limits, with_will,
};
