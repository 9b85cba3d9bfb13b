//! What ends with the network connection.

use std::collections::VecDeque;

use codec::{Ack, AckKind, Packet, Properties, Reason, Version};

use crate::alias::AliasUse;
use crate::layout::{Layout, Template};
use crate::read_pauses::ReadPauses;
use crate::{
    Awaited, Bucket, Control, Identifiers, InboundAliases, LARGE_BYTES_MIN, Message, NEVER,
    OutboundAliases, Outbox, Rate, Respondent, Terms,
};

/// Memory is kept ready for at most this many times what has arrived of a packet, or as much as the
/// client has filled with one before: its length is only what the client claims.
const INBOX_AHEAD_MAX: usize = 16;

/// So much of an outbox may come on top of a full one, as answers: an eighth.
const UNHEARD_PART: usize = 8;

/// What was agreed between client and server at CONNECT.
#[derive(Clone, Copy, Debug)]
pub struct LinkSettings {
    pub version: Version,
    /// A bridge of MQTT 3.1 or 3.1.1 cannot ask for No Local and Retain As Published: it gets them.
    pub is_bridge: bool,
    /// Seconds; the connection is cut after one and a half of it without a packet
    /// (MQTT-3.1.2-22). 0: never.
    pub keep_alive_secs: u16,
    /// Unacknowledged publishes we may have towards the client: the smaller of its receive
    /// maximum and our own `in_flight_max`.
    pub send_max: u16,
    /// Unacknowledged publishes the client may have towards us.
    pub receive_max: u16,
    /// The largest packet the client takes, in bytes.
    pub packet_bytes_max: u32,
    pub alias_out_max: u16,
    pub alias_in_max: u16,
    /// May reason strings and user properties be sent (MQTT-3.1.2-29)?
    pub problem_info: bool,
    /// The properties of each PUBLISH may have to be changed.
    pub rewrites_properties: bool,
    /// Above this many unsent bytes a QoS 0 publish is dropped and others wait in the queue.
    pub outbox_bytes_max: u32,
}

/// How much the client may send, as a publisher.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub messages: Rate,
    pub bytes: Rate,
}

/// An acknowledgement that has to be sent for a publish, in the order of the publishes.
#[derive(Clone, Debug)]
pub struct PendingAck {
    pub answer: Answer,
    /// Who has yet to accept the message.
    pub awaited: Awaited,
}

/// What a publish is answered with.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub kind: AckKind,
    pub packet_id: u16,
    pub reason: Reason,
    /// The connection is closed instead.
    is_end: bool,
}

/// A publish that may go on to the subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publishing<'a> {
    /// The topic, with the alias resolved.
    pub topic: &'a str,
    pub message_expiry_secs: Option<u32>,
    /// True if the properties hold something that must not be forwarded as it is, or may.
    pub rewrite_properties: bool,
}

/// Whether an outbox is to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dirt {
    Clean,
    /// Among those who get a broadcast, behind all others.
    SetApart,
    /// What becomes of who gets anything else.
    #[default]
    Urgent,
}

/// The state of one network connection.
#[derive(Debug)]
pub struct Link {
    settings: LinkSettings,
    /// The client's address, for log lines and answers to operators.
    pub peer: Box<str>,
    /// Which of the connections of its client it is: later ones have higher numbers.
    pub sequence: u64,
    /// Present from its first message on, in either direction.
    traffic: Option<Box<Traffic>>,
    pub outbox: Outbox,
    /// The part of a packet that has arrived so far. Empty, and without memory, between packets.
    pub inbox: Vec<u8>,
    /// The largest packet that was gathered in it.
    gathered_bytes_max: u32,
    aliases_in: InboundAliases,
    aliases_out: Option<Box<OutboundAliases>>,
    acks: VecDeque<PendingAck>,
    /// The number of the ack at the front of `acks`, counted from the start of the link.
    acks_taken: u32,
    /// Publishes of QoS 1 and 2 that the client waits for.
    unacked_in: u16,
    /// A publish was refused which only the end of the connection reports: before MQTT 5, when its
    /// fate is unknown ([`is_end`]), or when the client is gone already.
    is_refusing: bool,
    /// All before it have been answered.
    has_refused: bool,
    /// What it is sent stays in the outbox, also the CONNACK: it is not open yet.
    pub is_told_nothing: bool,
    /// Does the driver know that there may be something in the outbox?
    pub dirty: Dirt,
    pub read_pauses: ReadPauses,
    /// Bytes of answers that it has not taken, beside a full outbox.
    unheard_bytes: u32,
    /// What it last asked for took a good part of a turn.
    pub asks_for_much: bool,
    /// The connection is gone, but not all that came over it is handled.
    pub is_lost: bool,
    pub last_packet_ms: u64,
    /// Since when the client has been behind; [`NEVER`] once it has caught up.
    pub(crate) behind_since_ms: u64,
    /// Bytes it has taken since then.
    pub(crate) taken_bytes: u32,
    /// When it last sent many messages in one go; of the time in milliseconds the lower half.
    burst_ms: u32,
    /// What only few connections need.
    rare: Option<Box<Rare>>,
}

/// What a connection has sent and got since its first message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub messages_in: u64,
    pub messages_out: u64,
    /// Of all packets.
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// What only connections with messages need.
#[derive(Debug, Default)]
struct Traffic {
    tally: Tally,
    /// 0: it has published nothing yet.
    author: u64,
}

/// How fast a client may publish, and how it has logged in.
#[derive(Debug, Default)]
struct Rare {
    /// The authentication method that the CONNECT named (MQTT-4.12.1-1).
    auth_method: Option<Box<str>>,
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
    turn: Option<Turn>,
}

/// A PUBLISH that waits for the rate of its namespace.
#[derive(Debug)]
pub struct Turn {
    pub at_ms: u64,
    /// Of the packet, for which it was charged.
    pub bytes: u64,
}

impl Link {
    pub fn new(settings: LinkSettings, rates: Rates, seed: u64, now_ms: u64) -> Self {
        let messages = Bucket::new(rates.messages, now_ms);
        let bytes = Bucket::new(rates.bytes, now_ms);
        let limited = messages.is_some() || bytes.is_some();
        let aliases_out = settings.version >= Version::V5 && settings.alias_out_max > 0;
        Self {
            settings,
            peer: Box::default(),
            sequence: 0,
            traffic: None,
            outbox: Outbox::default(),
            inbox: Vec::new(),
            gathered_bytes_max: 0,
            aliases_in: InboundAliases::default(),
            aliases_out: aliases_out
                .then(|| Box::new(OutboundAliases::new(settings.alias_out_max, seed))),
            acks: VecDeque::new(),
            acks_taken: 0,
            unacked_in: 0,
            is_refusing: false,
            has_refused: false,
            is_told_nothing: false,
            dirty: Dirt::Clean,
            read_pauses: ReadPauses::default(),
            unheard_bytes: 0,
            asks_for_much: false,
            is_lost: false,
            last_packet_ms: now_ms,
            behind_since_ms: NEVER,
            taken_bytes: 0,
            // So long ago that it does not count.
            burst_ms: (now_ms as u32).wrapping_sub(BURST_MS),
            rare: limited.then(|| Box::new(Rare { messages, bytes, ..Rare::default() })),
        }
    }

    /// The authentication method that the CONNECT named.
    pub fn auth_method(&self) -> Option<&str> {
        self.rare.as_ref()?.auth_method.as_deref()
    }

    pub fn set_auth_method(&mut self, method: Option<Box<str>>) {
        if method.is_some() {
            self.rare.get_or_insert_default().auth_method = method;
        }
    }

    /// What stands for the client ID in what the client publishes
    /// ([`MessageParts::author`](crate::MessageParts::author)): made with the first message.
    pub fn author(&mut self, make: impl FnOnce() -> u64) -> u64 {
        let traffic = self.traffic.get_or_insert_default();
        if traffic.author == 0 {
            traffic.author = make();
        }
        traffic.author
    }

    /// What it has sent and got; all 0 before its first message.
    pub fn tally(&self) -> Tally {
        self.traffic.as_deref().map(|traffic| traffic.tally).unwrap_or_default()
    }

    /// Packets of so many bytes were taken from the client.
    #[inline]
    pub fn tally_taken(&mut self, publishes: u64, bytes: usize) {
        if publishes > 0 || self.traffic.is_some() {
            let Traffic { tally, .. } = &mut **self.traffic.get_or_insert_default();
            tally.messages_in += publishes;
            tally.bytes_in += bytes as u64;
        }
    }

    /// So many bytes of the outbox were written.
    #[inline]
    pub fn tally_written(&mut self, bytes: usize) {
        let publishes = self.outbox.take_publishes();
        if publishes > 0 || self.traffic.is_some() {
            let Traffic { tally, .. } = &mut **self.traffic.get_or_insert_default();
            tally.messages_out += u64::from(publishes);
            tally.bytes_out += bytes as u64;
        }
    }

    /// Keeps bytes of which no whole packet could be made yet, or that have to wait.
    pub fn put_aside(&mut self, bytes: &[u8]) {
        let arrived = self.inbox.len() + bytes.len();
        if arrived > self.inbox.capacity() {
            let front = if self.inbox.is_empty() { bytes } else { &self.inbox };
            let wanted = codec::packet_len(front).ok().flatten().unwrap_or_default();
            self.make_room(wanted, arrived);
        }
        self.inbox.extend_from_slice(bytes);
    }

    /// Makes room for the packet at the front, of which so much has arrived with what comes now. A
    /// large one is so not moved as it grows, and has no more room than it fills.
    fn make_room(&mut self, packet_bytes: usize, arrived: usize) {
        let trusted = (arrived * INBOX_AHEAD_MAX).max(self.gathered_bytes_max as usize);
        let wanted = packet_bytes.min(trusted);
        if wanted >= arrived {
            self.inbox.reserve_exact(wanted - self.inbox.len());
        } else if self.inbox.is_empty() {
            self.inbox.reserve_exact(arrived);
        }
    }

    /// Is a large packet under way? Then what it lacks may be read right into the inbox, which has
    /// room for some of it.
    pub fn gathers(&mut self) -> bool {
        let arrived = self.inbox.len();
        let Some(packet_len) = large_packet_len(&self.inbox).filter(|len| *len > arrived) else {
            return false;
        };
        if arrived == self.inbox.capacity() {
            self.make_room(packet_len, arrived);
        }
        arrived < self.inbox.capacity()
    }

    /// A packet of so many bytes was gathered, and taken out of the inbox.
    pub fn note_gathered(&mut self, packet_bytes: usize) {
        self.gathered_bytes_max = self.gathered_bytes_max.max(packet_bytes as u32);
    }

    pub const fn settings(&self) -> &LinkSettings {
        &self.settings
    }

    pub const fn version(&self) -> Version {
        self.settings.version
    }

    pub const fn is_bridge(&self) -> bool {
        self.settings.is_bridge
    }

    pub const fn is_v5(&self) -> bool {
        matches!(self.settings.version, Version::V5)
    }

    /// When the client counts as gone, unless a packet comes first (MQTT-3.1.2-22). Nobody is
    /// silent while nothing is read from it.
    pub fn keep_alive_deadline_ms(&self) -> Option<u64> {
        let keep_alive_ms = u64::from(self.settings.keep_alive_secs) * 1000;
        let heard_ms = self.last_packet_ms.max(self.read_pauses.until_ms());
        (keep_alive_ms > 0).then(|| heard_ms + keep_alive_ms + keep_alive_ms / 2)
    }

    /// The client, as a publisher, has just sent many messages in one go.
    pub const fn note_burst(&mut self, now_ms: u64) {
        self.burst_ms = now_ms as u32;
    }

    /// Does the client send many messages in one go, as who sends all it can?
    pub const fn sends_bursts(&self, now_ms: u64) -> bool {
        (now_ms as u32).wrapping_sub(self.burst_ms) < BURST_MS
    }

    /// The client has taken so many bytes more.
    pub const fn note_taken(&mut self, bytes: usize) {
        self.taken_bytes = self.taken_bytes.saturating_add(bytes as u32);
    }

    /// The client has taken all it was sent.
    pub const fn has_caught_up(&mut self) {
        self.behind_since_ms = NEVER;
        self.unheard_bytes = 0;
    }

    /// The client was answered while `unread` bytes waited for it. Publishes do not enter a full
    /// outbox, so what it has grown by are answers. True: so many have gathered that the client is
    /// not to be read before it reads.
    pub fn note_answers(&mut self, unread: usize) -> bool {
        let full_bytes = self.settings.outbox_bytes_max as usize;
        if unread < full_bytes {
            self.unheard_bytes = 0;
            return false;
        }
        let answers = self.outbox.len().saturating_sub(unread);
        self.unheard_bytes = self.unheard_bytes.saturating_add(answers as u32);
        self.unheard_bytes as usize > full_bytes / UNHEARD_PART
    }

    /// From now on so many unsent bytes are kept for the client at most. More that is queued
    /// already stays.
    pub const fn set_outbox_bytes_max(&mut self, bytes: u32) {
        self.settings.outbox_bytes_max = bytes;
    }

    /// Is there room for another publish to this client?
    pub const fn has_room(&self) -> bool {
        self.outbox.len() < self.settings.outbox_bytes_max as usize
    }

    /// Counts what was read. Some(time): read nothing from this connection before then.
    pub fn charge(&mut self, messages: u64, bytes: u64, now_ms: u64) -> Option<u64> {
        let paced = &mut **self.rare.as_mut()?;
        let after_messages = paced.messages.as_mut().and_then(|b| b.take(messages, now_ms));
        let after_bytes = paced.bytes.as_mut().and_then(|b| b.take(bytes, now_ms));
        after_messages.max(after_bytes)
    }

    /// Its next PUBLISH is charged to its namespace already, and is taken when its time has come.
    pub fn turn(&self) -> Option<&Turn> {
        self.rare.as_ref()?.turn.as_ref()
    }

    pub fn wait_for_turn(&mut self, turn: Turn) {
        self.rare.get_or_insert_default().turn = Some(turn);
    }

    pub fn take_turn(&mut self) -> Option<Turn> {
        self.rare.as_mut()?.turn.take()
    }

    /// The topic that the client has set an alias for.
    pub fn topic_of(&self, alias: u16) -> Option<&str> {
        self.aliases_in.topic(alias)
    }

    /// The topic that the client has been sent under an alias. Looks at all aliases.
    pub fn topic_sent_as(&self, alias: u16) -> Option<&[u8]> {
        self.aliases_out.as_ref()?.topic(alias)
    }

    pub(crate) fn aliases_in(&mut self) -> &mut InboundAliases {
        &mut self.aliases_in
    }

    /// Is the connection to be closed for a refused publish, once those before it are answered?
    pub const fn is_refusing(&self) -> bool {
        self.is_refusing
    }

    /// The client is gone and cannot get a refusal: it sends again what was refused, and all
    /// behind that.
    pub const fn refuse_rest(&mut self) {
        self.is_refusing = true;
    }

    /// Has the turn of the refused publish come?
    pub const fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// One more publish that has to be answered. False: more than the receive maximum allows.
    pub(crate) const fn take_receive_quota(&mut self) -> bool {
        if self.unacked_in >= self.settings.receive_max {
            return false;
        }
        self.unacked_in += 1;
        true
    }

    pub(crate) const fn give_receive_quota(&mut self) {
        self.unacked_in = self.unacked_in.saturating_sub(1);
    }

    /// Queues an acknowledgement. It leaves at once if nothing before it waits and none is
    /// awaited.
    #[inline]
    pub fn queue_ack(
        &mut self,
        kind: AckKind,
        packet_id: u16,
        reason: Reason,
        awaited: Option<Awaited>,
    ) {
        let is_end = is_end(self.is_v5(), kind, reason);
        self.queue(Answer { kind, packet_id, reason, is_end }, awaited);
    }

    /// Queues the acknowledgement of a publish that was refused ahead of every log. So MQTT 5
    /// clients get each reason.
    pub fn queue_refusal(&mut self, kind: AckKind, packet_id: u16, reason: Reason) {
        let is_end = reason.is_error() && !self.is_v5();
        self.queue(Answer { kind, packet_id, reason, is_end }, None);
    }

    #[inline]
    fn queue(&mut self, answer: Answer, awaited: Option<Awaited>) {
        self.is_refusing |= answer.is_end;
        if self.acks.is_empty() && awaited.is_none() {
            self.acks_taken = self.acks_taken.wrapping_add(1);
            self.write_queued_ack(answer);
        } else {
            self.acks.push_back(PendingAck { answer, awaited: awaited.unwrap_or_default() });
        }
    }

    /// The acknowledgement `number`, which still waits, waits for these, too.
    pub(crate) fn await_more(&mut self, number: u32, others: &Awaited) {
        let index = self.ack_index(number);
        if let Some(ack) = self.acks.get_mut(index) {
            ack.awaited.extend(others);
        }
    }

    /// One has answered for the acknowledgement `number`: accepted it, or not. None: it was not
    /// asked, or has answered already.
    pub(crate) fn note_answer(
        &mut self,
        number: u32,
        respondent: Respondent,
        reason: Reason,
    ) -> Option<&PendingAck> {
        let (index, is_v5) = (self.ack_index(number), self.is_v5());
        let ack = self.acks.get_mut(index)?;
        if !ack.awaited.remove(respondent) {
            return None;
        }
        let answer = &mut ack.answer;
        if reason.is_error() || !answer.reason.is_error() && answer.reason != Reason::SUCCESS {
            answer.reason = reason;
        }
        // A later answer does not make known what is unknown.
        answer.is_end |= is_end(is_v5, answer.kind, reason);
        self.is_refusing |= answer.is_end;
        Some(ack)
    }

    /// Writes the acknowledgements that wait for nothing any more.
    pub(crate) fn write_settled(&mut self) {
        while let Some(ack) = self.acks.pop_front_if(|ack| ack.awaited.is_empty()) {
            self.acks_taken = self.acks_taken.wrapping_add(1);
            self.write_queued_ack(ack.answer);
        }
    }

    /// The number that the next queued acknowledgement will get.
    pub fn next_ack_number(&self) -> u32 {
        self.acks_taken.wrapping_add(self.acks.len() as u32)
    }

    /// Numbers go round, but not while one waits: fewer do than there are packet ids.
    const fn ack_index(&self, number: u32) -> usize {
        number.wrapping_sub(self.acks_taken) as usize
    }

    /// QoS 2 publishes for which a place has yet to answer, with their numbers.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = (u32, &PendingAck)> {
        let numbered = (self.acks_taken..=u32::MAX).chain(0..).zip(&self.acks);
        numbered.filter(|(_, ack)| ack.answer.kind == AckKind::Pubrec && !ack.awaited.is_empty())
    }

    /// Acknowledgements that are held back by one before them or by a place that has to answer.
    pub fn acks_waiting(&self) -> usize {
        self.acks.len()
    }

    #[inline]
    fn write_queued_ack(&mut self, answer: Answer) {
        let Answer { kind, packet_id, reason, is_end } = answer;
        self.has_refused |= is_end;
        if self.has_refused {
            return;
        }
        if kind == AckKind::Puback || reason.is_error() {
            self.give_receive_quota();
        }
        self.write_ack(kind, packet_id, reason);
    }

    #[inline]
    pub fn write_ack(&mut self, kind: AckKind, packet_id: u16, reason: Reason) {
        let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
        let version = self.settings.version;
        self.outbox.append(|out| ack.encode(version, out));
        self.outbox.note_control(Control::of_ack(kind));
    }

    /// Writes any packet but PUBLISH. False if the client does not take packets of this size
    /// (MQTT-3.1.2-24): then nothing is written.
    pub fn write(&mut self, packet: &Packet<'_>) -> bool {
        let version = self.settings.version;
        let limit = self.settings.packet_bytes_max as usize;
        let first = self.outbox.append(|out| {
            let before = out.len();
            packet.encode(version, out);
            let first = out.get(before).copied().filter(|_| out.len() - before <= limit);
            if first.is_none() {
                out.truncate(before);
            }
            first
        });
        if let Some(first) = first {
            self.outbox.note_control(Control::of_first_byte(first));
        }
        first.is_some()
    }

    /// Writes a PUBLISH, with its packet id and DUP flag: a few bytes of header before bytes that
    /// all receivers share. False if it is larger than the client takes (MQTT-3.1.2-24): then
    /// nothing is written.
    pub fn write_publish(
        &mut self,
        message: &Message,
        terms: &Terms,
        (packet_id, dup): (u16, bool),
        now_ms: u64,
    ) -> bool {
        if self.aliases_out.is_some() {
            return self.write_with_alias(message, terms, (packet_id, dup), now_ms);
        }
        let layout = Layout::of(self.settings.version, message, terms, AliasUse::Name, now_ms);
        self.write_layout(&layout, message, terms, (packet_id, dup))
    }

    /// Out of line, so that what is written without aliases does not ask about them.
    #[inline(never)]
    fn write_with_alias(
        &mut self,
        message: &Message,
        terms: &Terms,
        (packet_id, dup): (u16, bool),
        now_ms: u64,
    ) -> bool {
        let version = self.settings.version;
        let alias = match &self.aliases_out {
            Some(aliases) => aliases.choose(message.topic_on_wire()),
            None => AliasUse::Name,
        };
        let mut layout = Layout::of(version, message, terms, alias, now_ms);
        if self.is_too_large(&layout) && matches!(alias, AliasUse::Set(_)) {
            // The three bytes that set an alias may be those that are too many.
            layout = Layout::of(version, message, terms, AliasUse::Name, now_ms);
        }
        let is_written = self.write_layout(&layout, message, terms, (packet_id, dup));
        if let (true, AliasUse::Set(alias)) = (is_written, layout.alias)
            && let Some(aliases) = &mut self.aliases_out
        {
            aliases.remember(layout.topic, alias);
        }
        is_written
    }

    #[inline(always)]
    fn write_layout(
        &mut self,
        layout: &Layout<'_>,
        message: &Message,
        terms: &Terms,
        (packet_id, dup): (u16, bool),
    ) -> bool {
        if self.is_too_large(layout) {
            return false;
        }
        // Not by a closure, which would be called with all of the layout in memory.
        let mut end = self.outbox.end();
        layout.write(terms, (packet_id, dup), end.bytes);
        end.count();
        self.outbox.note_publish();
        if layout.is_spliced() {
            self.outbox.splice_payload(message);
        }
        true
    }

    /// Writes a PUBLISH for the first time, perhaps as many others get it.
    pub(crate) fn write_first(
        &mut self,
        message: &Message,
        terms: &Terms,
        packet_id: u16,
        template: Option<&mut Template>,
        now_ms: u64,
    ) -> bool {
        let is_alike = self.aliases_out.is_none() && terms.identifiers == Identifiers::None;
        let Some(template) = template.filter(|_| is_alike) else {
            return self.write_publish(message, terms, (packet_id, false), now_ms);
        };
        template.prepare(self.settings.version, message, terms, now_ms);
        if template.packet_len() > self.settings.packet_bytes_max as usize {
            return false;
        }
        self.outbox.append(|out| template.write(packet_id, out));
        self.outbox.note_publish();
        if template.is_spliced() {
            self.outbox.splice_payload(message);
        }
        true
    }

    fn is_too_large(&self, layout: &Layout<'_>) -> bool {
        layout.packet_len() > self.settings.packet_bytes_max as usize
    }

    /// Gives back memory that only traffic needs, if there is none to hold.
    pub(crate) fn shrink(&mut self) {
        if self.acks.is_empty() {
            self.acks = VecDeque::new();
        }
    }
}

/// The length of the packet at the front of `bytes`, if it is one of those whose memory may become
/// that of a message.
pub fn large_packet_len(bytes: &[u8]) -> Option<usize> {
    let packet_len = codec::packet_len(bytes).ok().flatten()?;
    (packet_len >= LARGE_BYTES_MIN).then_some(packet_len)
}

/// Is the connection closed instead of sending this acknowledgement? Before MQTT 5 each refusal
/// closes it. In MQTT 5 the failure of a log closes it for QoS 2: the packet ID may be on the
/// medium. A PUBREC that refuses would free it for the client, and after a start its next message
/// would be taken for a repetition. So the client keeps the packet ID, and sends the same message
/// again.
fn is_end(is_v5: bool, kind: AckKind, reason: Reason) -> bool {
    let is_unknown = kind == AckKind::Pubrec && reason == Reason::IMPLEMENTATION_SPECIFIC_ERROR;
    reason.is_error() && (!is_v5 || is_unknown)
}

/// How long a client counts as one that sends many messages in one go.
const BURST_MS: u32 = 250;

#[cfg(test)]
mod tests {
    use codec::{QoS, varint};

    use super::*;
    use crate::{MessageParts, SPLICE_BYTES_MIN};

    fn link() -> Link {
        link_of(Version::V5, u32::MAX)
    }

    fn link_of(version: Version, packet_bytes_max: u32) -> Link {
        let settings = LinkSettings {
            version,
            is_bridge: false,
            keep_alive_secs: 0,
            send_max: 10,
            receive_max: 10,
            packet_bytes_max,
            alias_out_max: 0,
            alias_in_max: 0,
            problem_info: true,
            rewrites_properties: false,
            outbox_bytes_max: u32::MAX,
        };
        Link::new(settings, Rates::default(), 0, 0)
    }

    /// The first bytes of a PUBLISH that says to be of `body` bytes.
    fn beginning(body: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0x30];
        varint::write(&mut bytes, body);
        bytes.resize(len, 0);
        bytes
    }

    fn message(properties: &[u8], payload_len: usize) -> Message {
        Message::new(&MessageParts {
            topic: "site/7/state",
            properties,
            payload: &vec![b'x'; payload_len],
            qos: QoS::ExactlyOnce,
            retain: true,
            expires_at_ms: 5_000,
            publisher: 0,
            author: 0,
            level: 0,
            scope: 0,
        })
    }

    fn terms(qos: QoS, retain: bool, identifier: Option<u32>) -> Terms {
        let identifiers = identifier.map_or(Identifiers::None, |one| Identifiers::One([one]));
        Terms { identifiers, group: 0, serial: 0, qos, retain }
    }

    #[test]
    fn a_template_gives_every_receiver_what_would_be_written_for_it_alone() {
        let mut template = Template::default();
        let content = |link: &Link| link.outbox.slices().flatten().copied().collect::<Vec<u8>>();
        let qualities = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
        for (properties, payload_len) in [
            (&b""[..], 0),
            (b"\x01\x01", 100),
            (b"", 200),
            (b"\x01\x01", SPLICE_BYTES_MIN - 1),
            (b"", SPLICE_BYTES_MIN),
            (b"\x01\x01", 3 * SPLICE_BYTES_MIN),
        ] {
            let message = message(properties, payload_len);
            template.clear();
            // Receivers in turn, so that the template changes its kind and serves some twice.
            for turn in 0..96_u16 {
                let version = [Version::V311, Version::V5][usize::from(turn / 2 % 2)];
                let terms = terms(
                    qualities[usize::from(turn / 4 % 3)],
                    turn / 12 % 2 == 0,
                    (turn / 24 % 2 == 1).then_some(7),
                );
                let limit = if turn / 48 == 0 { u32::MAX } else { 120 };
                let (mut alone, mut one_of_many) =
                    (link_of(version, limit), link_of(version, limit));
                let written = alone.write_publish(&message, &terms, (turn + 1, false), 1_000);
                let many = Some(&mut template);
                let also = one_of_many.write_first(&message, &terms, turn + 1, many, 1_000);
                assert_eq!(written, also, "turn {turn}, payload {payload_len}");
                assert_eq!(content(&alone), content(&one_of_many), "turn {turn}");
                assert_eq!(alone.outbox.len(), one_of_many.outbox.len());
            }
        }
    }

    #[test]
    fn a_log_that_has_failed_closes_the_connection_whatever_another_shard_answers() {
        let answers = [Reason::IMPLEMENTATION_SPECIFIC_ERROR, Reason::QUOTA_EXCEEDED];
        for order in [[0, 1], [1, 0]] {
            let mut link = link();
            let mut awaited = Awaited::default();
            order.iter().for_each(|place| awaited.insert(Respondent::shard(*place as u16)));
            link.queue_ack(AckKind::Pubrec, 7, Reason::SUCCESS, Some(awaited));
            for place in order {
                let respondent = Respondent::shard(place as u16);
                link.note_answer(0, respondent, answers[place]).expect("it was asked");
                link.write_settled();
            }
            assert!(link.is_refusing() && link.has_refused(), "order {order:?}");
            assert_eq!(link.outbox.len(), 0, "a PUBREC would free the packet ID");
        }
    }

    #[test]
    fn a_large_packet_is_not_moved_while_it_arrives() {
        let mut link = link();
        link.put_aside(&beginning(60_000, 8_000));
        let place = link.inbox.as_ptr();
        link.put_aside(&[0; 50_000]);
        assert_eq!(link.inbox.as_ptr(), place);
        assert_eq!(link.inbox.len(), 58_000);
    }

    #[test]
    fn what_a_client_claims_makes_no_more_memory_than_a_multiple_of_what_it_sent() {
        let mut link = link();
        link.put_aside(&beginning(200_000_000, 1_000));
        assert!(link.inbox.capacity() <= 1_000 * INBOX_AHEAD_MAX, "{}", link.inbox.capacity());
        assert!(link.gathers());
        link.inbox.resize(link.inbox.capacity(), 0);
        assert!(link.gathers());
        let capacity_max = 1_000 * INBOX_AHEAD_MAX * INBOX_AHEAD_MAX;
        assert!(link.inbox.capacity() <= capacity_max, "{}", link.inbox.capacity());
    }

    #[test]
    fn a_client_that_has_sent_a_large_packet_gets_room_for_as_large_a_one_at_once() {
        let mut link = link();
        link.note_gathered(1_000_000);
        link.put_aside(&beginning(900_000, 100));
        assert_eq!(link.inbox.capacity(), 900_004);
        link.inbox = Vec::new();
        link.put_aside(&beginning(200_000_000, 100));
        assert_eq!(link.inbox.capacity(), 1_000_000);
    }

    #[test]
    fn traffic_is_counted_from_the_first_message_on() {
        let mut link = link();
        link.tally_taken(0, 2);
        link.tally_written(2);
        assert!(link.traffic.is_none(), "pings take no memory");
        link.tally_taken(3, 100);
        link.tally_written(4);
        link.outbox.note_publish();
        link.outbox.note_publish();
        link.tally_written(10);
        link.tally_taken(0, 2);
        let tally = Tally { messages_in: 3, messages_out: 2, bytes_in: 102, bytes_out: 14 };
        assert_eq!(link.tally(), tally);
    }

    #[test]
    fn a_link_stays_small() {
        assert!(size_of::<Link>() <= 256, "{}", size_of::<Link>());
    }

    #[test]
    fn only_what_a_large_packet_lacks_is_gathered() {
        for arrived in [0, 1, 2, 3, 4, 5, 20_000, 39_999, 40_003, 40_004, 40_005] {
            let mut link = link();
            let bytes = beginning(40_000, 40_004);
            link.put_aside(&bytes[..arrived.min(bytes.len())]);
            link.put_aside(&[0; 1][..arrived.saturating_sub(bytes.len())]);
            assert_eq!(link.gathers(), (4..40_004).contains(&arrived), "{arrived}");
            if link.gathers() {
                assert!(link.inbox.capacity() > arrived && link.inbox.capacity() <= 40_004);
            }
        }
        let mut link = link();
        link.put_aside(&beginning(10_000, 8_000));
        assert!(!link.gathers(), "a small packet is put together as before");
    }
}
