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

pub(crate) const fn qos(options: u8) -> QoS {
    match options & 0b11 {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

/// Of a subscription of a durable session that is read back, but for rights.
pub(crate) const fn of_kept(asked: codec::SubscribeOptions) -> u8 {
    let mut bits = asked.qos as u8;
    if asked.no_local {
        bits |= NO_LOCAL;
    }
    if asked.retain_as_published {
        bits |= RETAIN_AS_PUBLISHED;
    }
    match asked.qos {
        QoS::AtMostOnce => bits,
        _ => bits | DURABLE | PROMISES,
    }
}

/// A shared subscription whose session becomes durable is what such sessions are granted.
pub(crate) const fn of_durable_member(options: u8) -> u8 {
    match options & 0b11 {
        0 => options,
        _ => options & !0b11 | QoS::AtLeastOnce as u8 | DURABLE | PROMISES,
    }
}
