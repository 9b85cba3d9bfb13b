//! The shard from outside: events in, effects out, in one program so that it is linked once.

mod answers;
mod broadcast;
mod changed;
mod commands;
mod credit_windows;
mod durable;
mod ends;
mod expiring;
mod fairness;
mod filter_pauses;
mod flow;
mod full;
mod gather;
mod groups;
mod journal_shares;
#[path = "../lab/mod.rs"]
mod lab;
mod lifetime;
mod memory_limits;
mod memory_shares;
mod namespaces;
mod order;
mod owner;
mod packet_ids;
mod postponed;
mod prop_journal;
mod regressions;
mod repeats;
mod routing;
mod service;
mod spans;
mod tenants;
mod turns;
mod unreadable;
mod wills;
mod work;
