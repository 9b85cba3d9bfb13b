//! Cases as rows: a clause, a name, shards, and what clients do and get, step by step.
//!
//! ```text
//! row("MQTT-3.3.1-6", "an empty payload clears what is retained", Lab::new(2)).steps([
//!     sends("writer", ["publish t old retain", "publish t \"\" retain"]),
//!     sends("reader", ["subscribe t qos1"]),
//!     gets("reader", []),
//! ])
//! ```
//!
//! A row without a clause begins with `""`. A row with several labs is done in each. Packets are
//! texts: see `notation.rs`.
//!
//! A client connects when it is first named, with a session that ends with its connection, and all
//! shards do their work then: name it early if something lies in the mail meanwhile.
//!
//! - `reader@1` is a client on shard 1, `reader#2` a further connection of the client `reader`, and
//!   `300:reader` one in the namespace of this number.
//! - In a packet, `t@1` is a topic whose retained message is on shard 1.
//! - In addition to packets a client "sends" `kept` (it opens a session that never expires, or comes
//!   back to it) and `cut` (its connection breaks).

use std::collections::HashMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::notation::{payload_of, text_of, with_packet};
use broker::{ConnectRequest, Event, Figure, Limits, Metrics, Scope};
use codec::{AckKind, Packet, Reason, Version};
use policy::{Access, Permission, Who};
use rig::{Conn, Got, Lab, Received, publish_numbers, request, rule, with_limits};
use storage::testing::Crash;

/// A case.
pub(crate) struct Row {
    clause: &'static str,
    name: String,
    labs: Vec<Lab>,
    steps: Vec<Step>,
}

/// Something that is done or expected, and how a report calls it.
pub(crate) struct Step {
    says: String,
    act: Act,
}

/// An error says what was expected and what came.
type Act = Box<dyn Fn(&mut Stage) -> Result<(), String>>;

/// A laboratory in the middle of a row.
pub(crate) struct Stage {
    pub(crate) lab: Lab,
    conns: HashMap<String, Conn>,
    /// What a client was sent since it looked last.
    unread: HashMap<Conn, Vec<Got>>,
}

/// A row without its steps. `clause` may name several, with a space between them.
pub(crate) fn row(clause: &'static str, name: impl Into<String>, labs: impl Into<Labs>) -> Row {
    Row { clause, name: name.into(), labs: labs.into().0, steps: Vec::new() }
}

impl Row {
    pub(crate) fn steps(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps.extend(steps);
        self
    }

    /// The first step that is not as expected.
    fn fault(self) -> Option<String> {
        let count = self.labs.len();
        for (number, lab) in self.labs.into_iter().enumerate() {
            let mut stage = Stage { lab, conns: HashMap::new(), unread: HashMap::new() };
            for (index, Step { says, act }) in self.steps.iter().enumerate() {
                let done = catch_unwind(AssertUnwindSafe(|| act(&mut stage)));
                if let Err(why) = done.unwrap_or_else(|_| Err("  it panics, see above".into())) {
                    let (lab, step) = (number + 1, index + 1);
                    return Some(format!("lab {lab} of {count}, step {step}: {says}\n{why}"));
                }
            }
        }
        None
    }
}

/// Does all rows.
///
/// # Panics
///
/// When some are not as expected: it names each of them.
pub(crate) fn run(rows: impl IntoIterator<Item = Row>) {
    let mut faults = Vec::new();
    for row in rows {
        let title = format!("row {} ({})", row.name, row.clause).replace(" ()", "");
        if let Some(fault) = row.fault() {
            faults.push(format!("{title}: FAILED\n{fault}"));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

// What clients do.

/// Sends packets one by one; all shards do their work after each. That a subscription is granted
/// as it was asked for, and that its end is confirmed, needs no expectation of its own.
pub(crate) fn sends<T: Into<String>>(name: &str, packets: impl IntoIterator<Item = T>) -> Step {
    let packets: Vec<String> = packets.into_iter().map(Into::into).collect();
    let name = name.to_owned();
    step(format!("{name} sends {packets:?}"), move |stage| {
        packets.iter().try_for_each(|text| stage.send(&name, text))
    })
}

/// Sends a packet; the mail between shards stays where it is.
pub(crate) fn posts(name: &str, packet: &str) -> Step {
    let text = packet.to_owned();
    of(name, &format!("posts {text}"), move |stage, conn| {
        with_packet(&stage.placed(&text), |packet| stage.lab.send_only(conn, packet));
        Ok(())
    })
}

/// Sends packets in one go. The mail stays where it is.
pub(crate) fn bursts<T: Into<String>>(name: &str, packets: impl IntoIterator<Item = T>) -> Step {
    let packets: Vec<String> = packets.into_iter().map(Into::into).collect();
    of(name, &format!("sends {} packets at once", packets.len()), move |stage, conn| {
        let mut bytes = Vec::new();
        for text in &packets {
            with_packet(text, |packet| packet.encode(Version::V5, &mut bytes));
        }
        stage.lab.bytes(conn, &bytes);
        Ok(())
    })
}

/// Goes on with what was put aside in a pause.
pub(crate) fn reads_on(name: &str) -> Step {
    bursts::<&str>(name, [])
}

/// Subscribes to all in one packet. The mail stays where it is.
pub(crate) fn subscribes_all(name: &str, filters: Vec<String>, qos: u8) -> Step {
    of(name, &format!("subscribes to {}", filters.len()), move |stage, conn| {
        stage.lab.subscribe_all(conn, &filters, qos);
        Ok(())
    })
}

/// Sends bytes as they are.
pub(crate) fn sends_bytes(name: &str, bytes: &[u8]) -> Step {
    let bytes = bytes.to_vec();
    of(name, &format!("sends {} bytes", bytes.len()), move |stage, conn| {
        stage.lab.bytes(conn, &bytes);
        Ok(())
    })
}

/// Publishes these numbers with QoS 1, and reads all answers away.
pub(crate) fn numbers(name: &str, topic: &'static str, numbers: std::ops::Range<u32>) -> Step {
    of(name, &format!("publishes {numbers:?} on {topic}"), move |stage, conn| {
        publish_numbers(&mut stage.lab, conn, topic, numbers.clone());
        Ok(())
    })
}

/// Connects by a request of its own, and is accepted.
pub(crate) fn opens(name: &str, with: impl Fn(ConnectRequest) -> ConnectRequest + 'static) -> Step {
    let name = name.to_owned();
    step(format!("{name} opens"), move |stage| stage.open(&name, &with))
}

/// Connects by a request of its own; the CONNACK is the first packet that it gets.
pub(crate) fn connects(
    name: &str,
    with: impl Fn(ConnectRequest) -> ConnectRequest + 'static,
) -> Step {
    let name = name.to_owned();
    step(format!("{name} connects"), move |stage| {
        stage.connect(&name, &with);
        Ok(())
    })
}

/// Opens a kept session within limits.
pub(crate) fn keeps(name: &str, limits: Limits) -> Step {
    opens(name, move |request| with_limits(kept(request), limits.clone()))
}

/// Limits of its own for a client.
pub(crate) fn within(limits: Limits) -> impl Fn(ConnectRequest) -> ConnectRequest + 'static {
    move |request| with_limits(request, limits.clone())
}

/// A client of MQTT 3.1.1.
pub(crate) fn v311(request: ConnectRequest) -> ConnectRequest {
    ConnectRequest { version: Version::V311, ..request }
}

/// A session that never expires.
pub(crate) fn kept(request: ConnectRequest) -> ConnectRequest {
    ConnectRequest { clean_start: false, session_expiry_secs: u32::MAX, ..request }
}

// What clients get.

/// Exactly these packets have come since it looked last. Behind a DISCONNECT its connection is
/// closed.
pub(crate) fn gets<const N: usize>(name: &str, packets: [&str; N]) -> Step {
    let packets = packets.map(str::to_owned);
    of(name, "gets", move |stage, conn| {
        let expected: Vec<String> = packets.iter().map(|text| stage.placed(text)).collect();
        let ends = expected.last().is_some_and(|text| text.starts_with("disconnect"));
        same("packets", expected, stage.taken(conn).iter().map(text_of).collect())?;
        same("closed", true, !ends || stage.lab.is_closed(conn))
    })
}

/// Sends a packet, and gets exactly these.
pub(crate) fn asks<const N: usize>(name: &str, packet: &str, answers: [&str; N]) -> Step {
    all([sends(name, [packet]), gets(name, answers)])
}

/// These payloads have come since it looked last; other packets do not matter.
pub(crate) fn reads<T: ToString>(name: &str, payloads: impl IntoIterator<Item = T>) -> Step {
    let expected: Vec<String> = payloads.into_iter().map(|payload| payload.to_string()).collect();
    of(name, "reads", move |stage, conn| {
        let got = stage.received(conn);
        same("payloads", expected.clone(), got.iter().map(payload_of).collect())
    })
}

/// So many messages have come since it looked last.
pub(crate) fn reads_count(name: &str, count: usize) -> Step {
    of(name, "reads", move |stage, conn| same("count", count, stage.received(conn).len()))
}

/// Acknowledges until nothing comes any more, and has read these payloads then.
pub(crate) fn reads_all<T: ToString>(name: &str, payloads: impl IntoIterator<Item = T>) -> Step {
    let expected: Vec<String> = payloads.into_iter().map(|payload| payload.to_string()).collect();
    of(name, "reads all", move |stage, conn| {
        let read = stage.read_all(conn);
        same("payloads", expected.clone(), read.iter().map(payload_of).collect())
    })
}

/// The same, by the number of messages.
pub(crate) fn reads_all_of(name: &str, count: usize) -> Step {
    of(name, "reads all", move |stage, conn| same("count", count, stage.read_all(conn).len()))
}

pub(crate) fn is_closed(name: &str) -> Step {
    of(name, "is closed", |stage, conn| same("closed", true, stage.lab.is_closed(conn)))
}

pub(crate) fn is_open(name: &str) -> Step {
    of(name, "is open", |stage, conn| same("closed", false, stage.lab.is_closed(conn)))
}

/// Pauses of this client and of no other since the last look, by milliseconds from now.
pub(crate) fn pauses<const N: usize>(name: &str, expected_ms: [u64; N]) -> Step {
    of(name, "is paused", move |stage, conn| {
        let now_ms = stage.lab.now_ms;
        let pauses = std::mem::take(&mut stage.lab.pauses);
        same("pauses", expected_ms.map(|ms| (conn, now_ms + ms)).to_vec(), pauses)
    })
}

pub(crate) fn is_read(name: &str) -> Step {
    of(name, "is read", |stage, conn| same("is read", true, stage.lab.is_read(conn)))
}

/// Until something happens, as to what it sent, took or has in its queue.
pub(crate) fn is_not_read(name: &str) -> Step {
    of(name, "is not read", |stage, conn| same("is read", false, stage.lab.is_read(conn)))
}

// Everything else.

/// So many events of a kind were reported until now.
pub(crate) fn reports(is_it: impl Fn(&Event) -> bool + 'static, count: usize) -> Step {
    step("reports".into(), move |stage| {
        let events = &stage.lab.events;
        let got = events.iter().filter(|event| is_it(event)).count();
        same("events", count, got).map_err(|why| format!("{why}\n  of {events:?}"))
    })
}

/// Mail is carried until there is none; outboxes stay as they are.
pub(crate) fn carries_mail() -> Step {
    acts("carries mail", |stage| stage.lab.settle_mail())
}

/// Anything that no other step does. It panics if something is not as expected.
pub(crate) fn does(act: impl Fn(&mut Stage) + 'static) -> Step {
    acts("does", act)
}

fn acts(says: &str, act: impl Fn(&mut Stage) + 'static) -> Step {
    step(says.into(), move |stage| {
        act(stage);
        Ok(())
    })
}

/// Several steps that belong together.
pub(crate) fn all<const N: usize>(steps: [Step; N]) -> Step {
    let says = steps.first().map(|step| step.says.clone()).unwrap_or_default();
    step(format!("{says} and more"), move |stage| {
        for Step { says, act } in &steps {
            act(stage).map_err(|why| format!("  {says}\n{why}"))?;
        }
        Ok(())
    })
}

/// What is in outboxes is written; the mail between shards stays where it is.
pub(crate) fn flushes() -> Step {
    acts("flushes", |stage| stage.lab.flush())
}

/// All shards do their work.
pub(crate) fn settles() -> Step {
    acts("settles", |stage| stage.lab.settle())
}

/// From now on the disks do nothing, whatever they are told.
pub(crate) fn stands_still() -> Step {
    does(|stage| stage.lab.disks_stand_still = true)
}

/// The disks do what they were told.
pub(crate) fn works() -> Step {
    does(|stage| stage.lab.let_disks_work())
}

/// Time passes, and no shard looks at it.
pub(crate) fn waits_ms(ms: u64) -> Step {
    acts("waits", move |stage| stage.lab.now_ms += ms)
}

pub(crate) fn passes(secs: u64) -> Step {
    acts("passes", move |stage| stage.lab.pass_secs(secs))
}

/// All shards lose what the disks do not have yet, and start again.
pub(crate) fn crashes() -> Step {
    crashes_by(Crash::Power)
}

pub(crate) fn crashes_by(crash: Crash) -> Step {
    acts("crashes", move |stage| {
        stage.lab.crash(crash);
        stage.conns.clear();
    })
}

/// A counter, over all shards.
pub(crate) fn counts<T: Figure>(figure: impl Fn(&Metrics) -> &T + 'static, expected: u64) -> Step {
    step("counts".into(), move |stage| same("count", expected, stage.lab.total(&figure)))
}

/// A counter that need not be exact.
pub(crate) fn counts_in<T: Figure>(
    figure: impl Fn(&Metrics) -> &T + 'static,
    expected: std::ops::Range<u64>,
) -> Step {
    step("counts".into(), move |stage| {
        let count = stage.lab.total(&figure);
        let message = || format!("  expected count: {expected:?}\n  got      count: {count}");
        expected.contains(&count).then_some(()).ok_or_else(message)
    })
}

/// Rights of everybody.
pub(crate) fn everyone<const N: usize>(rules: [(Permission, &str); N]) -> Access {
    let rules = rules.map(|(permission, filter)| rule(Who::Everyone, permission, filter));
    Access::compile(&rules).expect("sound rules")
}

/// From now on all shards have these rules.
pub(crate) fn rules(access: Access) -> Step {
    acts("rules", move |stage| {
        stage.lab.shards.iter_mut().for_each(|own| own.set_access(access.clone()));
    })
}

fn step(says: String, act: impl Fn(&mut Stage) -> Result<(), String> + 'static) -> Step {
    Step { says, act: Box::new(act) }
}

/// A step of one client, which connects if it has not.
fn of(
    name: &str,
    says: &str,
    act: impl Fn(&mut Stage, Conn) -> Result<(), String> + 'static,
) -> Step {
    let name = name.to_owned();
    step(format!("{name} {says}"), move |stage| {
        let conn = stage.conn(&name);
        act(stage, conn)
    })
}

fn same<T: PartialEq + Debug>(what: &str, expected: T, got: T) -> Result<(), String> {
    if expected == got {
        return Ok(());
    }
    Err(format!("  expected {what}: {expected:?}\n  got      {what}: {got:?}"))
}

impl Stage {
    /// The connection of a client, which connects if it has not.
    pub(crate) fn conn(&mut self, name: &str) -> Conn {
        match self.conns.get(name) {
            Some(conn) => *conn,
            None => {
                self.open(name, &|request| request).expect("accepted");
                self.conns[name]
            }
        }
    }

    fn connect(&mut self, name: &str, with: &dyn Fn(ConnectRequest) -> ConnectRequest) -> Conn {
        let id = name.split('#').next().unwrap_or(name);
        let (scope, id) = match id.split_once(':') {
            Some((number, id)) => (Scope::new(number.parse().expect("a number")), id),
            None => (Scope::FIRST, id),
        };
        let id = match id.split_once('@') {
            Some((id, shard)) => self.lab.id_on(shard.parse().expect("a shard"), id),
            None => id.to_owned(),
        };
        let request = ConnectRequest { scope, ..request(&id) };
        let conn = self.lab.connect(with(request));
        self.conns.insert(name.to_owned(), conn);
        conn
    }

    fn open(
        &mut self,
        name: &str,
        with: &dyn Fn(ConnectRequest) -> ConnectRequest,
    ) -> Result<(), String> {
        let conn = self.connect(name, with);
        match self.lab.take(conn) {
            Some(Got::Connack { reason: Reason::SUCCESS, .. }) => Ok(()),
            answer => Err(format!("  expected a CONNACK, got {answer:?}")),
        }
    }

    fn send(&mut self, name: &str, text: &str) -> Result<(), String> {
        if text == "kept" {
            return self.open(name, &kept);
        }
        let conn = self.conn(name);
        if text == "cut" {
            self.lab.cut(conn);
            return Ok(());
        }
        let granted = with_packet(&self.placed(text), |packet| {
            self.lab.send(conn, packet);
            match packet {
                Packet::Subscribe(packet) => {
                    let asked = packet.filters.iter().map(|(_, options)| options.qos as u8);
                    Some(Got::Suback(packet.packet_id, asked.collect()))
                }
                Packet::Unsubscribe(packet) => Some(Got::Unsuback(packet.packet_id, vec![0])),
                _ => None,
            }
        });
        self.look(conn).retain(|got| Some(got) != granted.as_ref());
        Ok(())
    }

    /// With a topic in the place of `t@1`.
    fn placed(&self, text: &str) -> String {
        let place = |word: &str| match word.split_once('@') {
            Some((name, shard)) => self.lab.topic_on(shard.parse().expect("a shard"), name),
            None => word.to_owned(),
        };
        text.split(' ').map(place).collect::<Vec<_>>().join(" ")
    }

    fn look(&mut self, conn: Conn) -> &mut Vec<Got> {
        let got = self.lab.take_all(conn);
        let unread = self.unread.entry(conn).or_default();
        unread.extend(got);
        unread
    }

    fn taken(&mut self, conn: Conn) -> Vec<Got> {
        std::mem::take(self.look(conn))
    }

    /// Packets since it looked last.
    pub(crate) fn taken_by(&mut self, name: &str) -> Vec<Got> {
        let conn = self.conn(name);
        self.taken(conn)
    }

    /// New shards on the same disks.
    pub(crate) fn restart(&mut self) {
        self.lab.restart();
        self.conns.clear();
    }

    /// Messages since it looked last.
    ///
    /// # Panics
    ///
    /// When a subscription was refused that no step has asked for the answer to.
    pub(crate) fn received(&mut self, conn: Conn) -> Vec<Received> {
        let received = self.taken(conn).into_iter().filter_map(|got| match got {
            Got::Publish(received) => Some(received),
            Got::Suback(_, codes) if codes.iter().any(|code| *code >= 0x80) => {
                panic!("a subscription is refused: {codes:02x?}")
            }
            _ => None,
        });
        received.collect()
    }

    /// Acknowledges until nothing comes any more.
    pub(crate) fn read_all(&mut self, conn: Conn) -> Vec<Received> {
        let mut read = Vec::new();
        loop {
            let received = self.received(conn);
            if received.is_empty() {
                return read;
            }
            for publish in &received {
                let kinds: &[_] = match publish.qos {
                    0 => &[],
                    1 => &[AckKind::Puback],
                    _ => &[AckKind::Pubrec, AckKind::Pubcomp],
                };
                kinds.iter().for_each(|kind| self.lab.ack(conn, *kind, publish.packet_id));
            }
            read.extend(received);
        }
    }
}

/// Laboratories in each of which a row is done.
pub(crate) struct Labs(Vec<Lab>);

impl From<Lab> for Labs {
    fn from(lab: Lab) -> Self {
        Self(vec![lab])
    }
}

impl<const N: usize> From<[Lab; N]> for Labs {
    fn from(labs: [Lab; N]) -> Self {
        Self(labs.into())
    }
}

#[test]
fn texts_mean_the_packets_that_they_say() {
    run([row("", "a packet comes as it was sent", Lab::new(2)).steps([
        sends("reader", ["subscribe # qos2 sub7"]),
        sends("writer", ["publish t@1 \"\" qos1", "publish t@0 x*100 qos2 id9 expiry20"]),
        gets(
            "reader",
            ["publish t@1 \"\" qos1 id1 sub7", "publish t@0 x*100 qos2 id2 expiry20 sub7"],
        ),
        sends("reader", ["puback 1"]),
        gets("reader", []),
        asks("reader", "unsubscribe t", ["unsuback 1: no_subscription_existed"]),
    ])]);
}

/// Not in the row itself, which proves nothing.
const CLAUSE: &str = "MQTT-4.6.0-1";

#[test]
#[should_panic(expected = "row nothing comes (MQTT-4.6.0-1): FAILED\n\
    lab 1 of 1, step 3: reader gets\n  expected packets: []\n  got      packets: [\"publish t x\"]")]
fn a_row_that_fails_is_named_with_what_was_expected_and_what_came() {
    run([row(CLAUSE, "nothing comes", Lab::new(1)).steps([
        sends("reader", ["subscribe t"]),
        sends("writer", ["publish t x"]),
        gets("reader", []),
    ])]);
}
