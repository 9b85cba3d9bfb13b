//! Bits of `Subscription::options`.

use codec::QoS;

pub(crate) const NO_LOCAL: u8 = 0b0000_0100;
pub(crate) const RETAIN_AS_PUBLISHED: u8 = 0b0000_1000;
/// The receive rules do not cover the whole filter: ask for each message.
pub(crate) const CHECK_RECEIVE: u8 = 0b0001_0000;
/// The session is in the journal, and so is what is assigned to this subscription.
pub(crate) const DURABLE: u8 = 0b0010_0000;
/// The publisher's acknowledgement waits for this subscriber's shard.
pub(crate) const PROMISES: u8 = topic::Subscription::PROMISES;

/// Of a subscription for which the journal keeps messages.
pub(crate) const KEPT: u8 = DURABLE | PROMISES;

pub(crate) const fn is_durable(options: u8) -> bool {
    options & DURABLE != 0
}

/// It has QoS 0 by now, but was durable: what was accepted for it before is still due.
pub(crate) const fn is_owed(options: u8) -> bool {
    is_durable(options) && options & 0b11 == 0
}

pub(crate) const fn qos(options: u8) -> QoS {
    match options & 0b11 {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

/// A shared subscription whose session becomes durable is what such sessions are granted.
pub(crate) const fn of_durable_member(options: u8) -> u8 {
    match options & 0b11 {
        0 => options,
        _ => options & !0b11 | QoS::AtLeastOnce as u8 | KEPT,
    }
}
