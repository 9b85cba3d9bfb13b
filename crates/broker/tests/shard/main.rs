//! The shard from outside: events in, effects out, in one program so that it is linked once.

mod answers;
mod broadcast;
mod changed;
mod commands;
mod durable;
mod ends;
mod expiring;
mod fairness;
mod flow;
mod full;
mod gather;
mod greed;
mod groups;
mod holds;
#[path = "../lab/mod.rs"]
mod lab;
mod lanes;
mod late;
mod lifetime;
mod log_shares;
mod namespaces;
mod order;
mod owner;
mod packet_ids;
mod prop_journal;
mod regressions;
mod repeats;
mod routing;
mod short;
mod tenants;
mod turns;
mod unreadable;
mod wills;
mod work;
