//! From a PUBLISH to a message: the checks, and the one allocation on its way.

use codec::{Publish, QoS, Reason, Violation};
use policy::{Action, Identity, Manner};
use session::{Inbound, Message, MessageParts, NEVER};

use crate::log::store::Log;
use crate::observe::spans::write_forwarded;
use crate::parts::client::Client;
use crate::parts::verdicts::Verdict;
use crate::state::Context;
use crate::words::clearing::frees_room;
use crate::words::input::OwnMemory;
use crate::words::reasons::check_sizes;
use crate::{Ended, Name};

/// Which door an accepted message goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing of its publisher waits in the log, and the log does not take it on.
    Plain,
    /// It may be taken on, come again, or have to wait behind others of its publisher.
    Kept,
}

/// What the checks of a PUBLISH came to.
pub(crate) enum Checked {
    Accept(Message, Way),
    /// There is no memory for it.
    Refuse(Message),
    /// Known. Some: it is retained, perhaps in place of what an older one has put there again.
    Repeat(Option<Message>),
    Deny(Box<str>),
    /// The service that has to allow it could not be asked.
    Unknown(Message),
    Invalid(Violation),
}

/// Checks a PUBLISH and makes it a message: the one allocation on its way.
pub(crate) fn check(
    client: &mut Client,
    cx: &mut Context,
    log: Option<&Log>,
    publish: &Publish<'_>,
    memory: OwnMemory<'_>,
) -> Result<Checked, Ended> {
    cx.metrics.publishes_received.count(publish.qos as usize);
    cx.metrics.publish_bytes_received.add(publish.payload.len() as u64);
    cx.flow.work.charge(client.grants.topic_units());
    check_offered(client, publish).map_err(Ended::Violation)?;
    let is_undone = publish.retain && client.has_undone(log, publish.packet_id);
    let asks = client.grants.asks_service();
    let verdict = if asks { client.verdict_of(publish, cx) } else { None };
    let Client { scope, id, key, username, principal, grants, limits, session, .. } = client;
    let name = Name::new(*scope, &**id);
    let author = session.link_mut().map_or(0, |link| link.author(|| name.author()));
    let inbound = session.on_publish(publish).map_err(Ended::Violation)?;
    let (publishing, is_repeat) = match inbound {
        Inbound::Accept(publishing) => (publishing, false),
        Inbound::Repeat(_) if !is_undone => return Ok(Checked::Repeat(None)),
        Inbound::Repeat(publishing) => (publishing, true),
    };
    let topic = publishing.topic;
    if let Err(violation) = check_sizes(topic, publish.properties, limits) {
        return Ok(Checked::Invalid(violation));
    }
    let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
    let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
    let is_let = matches!(verdict, Some(Verdict::Allowed | Verdict::Unknown));
    if !grants.allows_as(identity, Action::Publish, topic, manner) && !is_let {
        return Ok(Checked::Deny(topic.into()));
    }
    let properties = if publishing.rewrite_properties {
        let own = match cx.tracing {
            Some(_) if !is_repeat => cx.note_received(Name::new(*scope, id), *key, publish, topic),
            _ => None,
        };
        let buffer = cx.buffers.properties();
        write_forwarded(publish.properties, own, buffer);
        buffer.as_properties().raw()
    } else {
        publish.properties.raw()
    };
    let parts = MessageParts {
        topic,
        properties,
        payload: publish.payload,
        qos: publish.qos,
        retain: publish.retain,
        expires_at_ms: limits
            .message_expiry_secs(publishing.message_expiry_secs)
            .map_or(NEVER, |secs| cx.now_ms + u64::from(secs) * 1000),
        publisher: key.as_u64(),
        author,
        level: match log {
            Some(_) => cx.shared.settings.level_of(topic, limits.durability),
            None => 0,
        },
        scope: scope.number(),
    };
    let message = match memory {
        Some(memory) => Message::of_packet(&parts, memory),
        None => Message::new(&parts),
    };
    let way = way_of(client, log, publish);
    Ok(outcome_of(client, cx, message, (verdict, is_repeat), way))
}

/// What becomes of a message that nothing forbids.
#[inline]
fn outcome_of(
    client: &Client,
    cx: &mut Context,
    message: Message,
    (verdict, is_repeat): (Option<Verdict>, bool),
    way: Way,
) -> Checked {
    if verdict == Some(Verdict::Unknown) {
        return Checked::Unknown(message);
    }
    if is_repeat {
        return Checked::Repeat(Some(message));
    }
    let is_refused = cx.shared.memory_is_short()
        && !frees_room(&message)
        && client.lacks_memory(cx, message.heap_bytes());
    if is_refused { Checked::Refuse(message) } else { Checked::Accept(message, way) }
}

fn check_offered(client: &Client, publish: &Publish<'_>) -> Result<(), Violation> {
    if publish.qos > client.limits.qos_max {
        return Err(Violation {
            reason: Reason::QOS_NOT_SUPPORTED,
            clause: "MQTT-3.2.2-11",
            detail: "QoS of a publish above qos_max",
        });
    }
    if publish.retain && !client.limits.retain_available {
        return Err(Violation {
            reason: Reason::RETAIN_NOT_SUPPORTED,
            clause: "MQTT-3.2.2-14",
            detail: "retained publish, but retained messages are disabled (retain_available)",
        });
    }
    Ok(())
}

#[inline]
fn way_of(client: &Client, log: Option<&Log>, publish: &Publish<'_>) -> Way {
    let comes_again = publish.dup && publish.retain;
    let asks_log = |log: &Log| {
        publish.qos != QoS::AtMostOnce || client.is_kept && log.is_in_line(client.key.slot())
    };
    if comes_again || log.is_some_and(asks_log) { Way::Kept } else { Way::Plain }
}
