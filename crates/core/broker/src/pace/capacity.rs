//! Where a publish has to be written, and whether there is room for it there.

use codec::{Publish, QoS, Reason};
use session::{MemoryKind, Message};
use storage::Status;

use crate::Shard;
use crate::log::messages::OWNER_BYTES_MAX;
use crate::log::store::Log;
use crate::parts::client::{Client, Pace, topic_of};
use crate::parts::flow::{PAUSE_MS, RECHECK_MS};
use crate::parts::groups::Groups;
use crate::parts::router::Router;
use crate::parts::sessions::Sessions;
use crate::parts::stream_index::Asking;
use crate::state::Context;
use crate::words::clearing::frees_room;
use crate::{Confirm, Name, Scope, WhenFull};

/// What a fact adds to topic, properties and payload of a message at the most, and some more.
const FACT_BYTES_MAX: usize = 1024 + OWNER_BYTES_MAX;

impl Shard {
    /// The shards that may have to write this message down, a bit for each.
    fn keepers_of(&mut self, message: &Message) -> u64 {
        let topic = Name::topic_of(message);
        let mut keepers = self.sessions.router.interested(topic).promises;
        if !self.sessions.streams_for(message).is_empty() {
            keepers |= 1 << self.cx.id;
        }
        if message.retain() && !frees_room(message) {
            keepers |= 1 << self.cx.shared.place_of_topic(Name::of(message));
        }
        if message.qos() != QoS::AtMostOnce {
            keepers |= self.sessions.router.homes_of_kept_groups(&mut self.cx, &self.groups, topic);
        }
        keepers
    }

    /// Why a message cannot be written where it has to be, as far as the shards there have said.
    /// `here`: the bit of this shard, if it writes it whoever the recipients are.
    #[inline(always)]
    pub(crate) fn lacks_disk_for(&mut self, message: &Message, here: u64) -> Option<Reason> {
        self.log.as_ref()?;
        self.lacks_journal_for(message, here)
    }

    #[inline(never)]
    fn lacks_journal_for(&mut self, message: &Message, here: u64) -> Option<Reason> {
        if self.sessions.is_over_log_limit(message) && (here | self.keepers_of(message)) != 0 {
            self.sessions.count_journal_refusal(message);
            return Some(Reason::QUOTA_EXCEEDED);
        }
        let journals = self.cx.shared.journals();
        if journals.full | journals.poisoned | journals.tight == 0
            || message.level() == 0 && self.sessions.streams_for(message).is_empty()
        {
            return None;
        }
        let is_clear = frees_room(message);
        let lacking = match self.sessions.owner_of(message) {
            // Who could wait has waited (`wait_for_disk_ms`). Who has gone cannot.
            Some(owner) if journals.tight != 0 && !is_clear => {
                self.cx.shared.journals_lacking(journals.tight, owner, message.heap_bytes() as u64)
            }
            _ => 0,
        };
        let keepers = here | self.keepers_of(message);
        // What clears a topic frees room, and may use what is reserved for that.
        let full = if is_clear { 0 } else { journals.full | lacking };
        match keepers {
            _ if keepers & journals.poisoned != 0 => Some(Reason::IMPLEMENTATION_SPECIFIC_ERROR),
            _ if keepers & full != 0 => Some(Reason::QUOTA_EXCEEDED),
            _ => None,
        }
    }

    /// Does the owner of a will use too much of a journal that would have to store it? No client
    /// can be paused for it, or get a refusal.
    pub(crate) fn lacks_share_for(&mut self, will: &Message) -> bool {
        let tight = self.cx.shared.journals().tight;
        if self.log.is_some() && self.sessions.is_over_log_limit(will) {
            self.sessions.count_journal_refusal(will);
            return true;
        }
        if self.log.is_none() || tight == 0 || will.level() == 0 || frees_room(will) {
            return false;
        }
        let bytes = will.heap_bytes() as u64;
        let lacking =
            self.sessions.owner_of(will).map(|p| self.cx.shared.journals_lacking(tight, p, bytes));
        lacking.is_some_and(|lacking| lacking & self.keepers_of(will) != 0)
    }

    /// Is mail that found no room in the log kept until there is?
    pub(crate) fn waits_for_disk(&self, confirm: Option<Confirm>) -> bool {
        let (Some(confirm), Some(log)) = (confirm, &self.log) else { return false };
        let status = log.status();
        let waits = !matches!(status, Status::Full(_)) || self.cx.waits_when_full();
        confirm.serial != 0 || !status.is_out_of_service() && (waits || confirm.is_again)
    }

    /// With a disk that is behind, publishers are read on a little later.
    #[inline(always)]
    pub(crate) fn pace_of_disk(&self) -> Pace {
        match &self.log {
            Some(log) if log.is_disk_behind() => {
                Pace { pause_ms: *PAUSE_MS.start(), ..Pace::default() }
            }
            _ => Pace::default(),
        }
    }
}

impl Sessions {
    /// Has its namespace as much in the journals as it is limited to?
    pub(crate) fn is_over_log_limit(&mut self, message: &Message) -> bool {
        let bytes = message.heap_bytes() as u64;
        !Scope::of(message).is_first()
            && (message.level() != 0 || !self.streams_for(message).is_empty())
            && !frees_room(message)
            && self.owner_of(message).is_some_and(|p| p.is_over_limit(MemoryKind::Logged, bytes))
    }

    fn count_journal_refusal(&self, message: &Message) {
        if let Some(owner) = self.owner_of(message) {
            owner.count_refusal(MemoryKind::Logged, message.heap_bytes() as u64);
        }
    }
}

impl Context {
    /// Has who finds no room in a journal to wait for some?
    fn waits_when_full(&self) -> bool {
        self.shared.settings.when_full == WhenFull::Wait
    }
}

impl Client {
    /// How long this publish has to wait, because a disk that has to take it is behind or has no
    /// space for it.
    pub(crate) fn wait_for_disk_ms(
        &self,
        cx: &mut Context,
        log: &Log,
        groups: &Groups,
        router: &mut Router,
        publish: &Publish<'_>,
    ) -> Option<u64> {
        let topic = topic_of(self, publish);
        let properties = publish.properties.raw().len();
        let bytes = topic.len() + properties + publish.payload.len() + FACT_BYTES_MAX;
        // For its recipients, and as the retained message of its topic.
        let records = 1 + usize::from(publish.retain);
        let journals = cx.shared.journals();
        let is_clear = publish.retain && publish.payload.is_empty();
        let lacking = match self.charged.account() {
            Some(owner) if journals.tight != 0 => {
                cx.shared.journals_lacking(journals.tight, owner, bytes as u64)
            }
            _ => 0,
        };
        let full = if cx.waits_when_full() && !is_clear { journals.full | lacking } else { 0 };
        let behind = journals.behind | u64::from(log.would_wait(bytes, records)) << cx.id;
        if router.streams().is_behind() && self.is_for_streams(router, publish) {
            return Some(RECHECK_MS);
        }
        if full | behind == 0 {
            return None;
        }
        let keepers = self.keepers(cx, groups, router, publish);
        if keepers & full != 0 {
            return Some(RECHECK_MS);
        }
        (keepers & behind != 0).then_some(u64::from(*PAUSE_MS.start()))
    }

    /// The shards that may have to write this publish down, a bit for each.
    fn keepers(
        &self,
        cx: &mut Context,
        groups: &Groups,
        router: &mut Router,
        publish: &Publish<'_>,
    ) -> u64 {
        let topic = topic_of(self, publish);
        let level = cx.shared.settings.level_of(topic, self.limits.durability);
        let name = Name::new(self.scope, topic);
        let mut keepers = u64::from(self.is_for_streams(router, publish)) << cx.id;
        // For QoS 2 the packet ids of its deliveries are, whatever its level.
        if level == 0 && publish.qos != QoS::ExactlyOnce || publish.qos == QoS::AtMostOnce {
            return keepers;
        }
        keepers |= router.interested(name.as_bytes()).promises;
        if publish.qos == QoS::ExactlyOnce && self.is_kept {
            keepers |= 1 << cx.id;
        }
        if publish.retain {
            keepers |= 1 << cx.shared.place_of_topic(name);
        }
        keepers | router.homes_of_kept_groups(cx, groups, name.as_bytes())
    }

    /// May a stream want this publish? As [`Router::may_be_streamed`].
    #[inline]
    pub(crate) fn may_be_streamed(&self, router: &Router, publish: &Publish<'_>) -> bool {
        !router.streams().is_empty()
            && router.may_be_streamed(Name::new(self.scope, topic_of(self, publish)).as_bytes())
    }

    fn is_for_streams(&self, router: &mut Router, publish: &Publish<'_>) -> bool {
        let name = Name::new(self.scope, topic_of(self, publish));
        let (qos, retain, payload_bytes) = (publish.qos, publish.retain, publish.payload.len());
        let asking = Asking { qos, retain, payload_bytes };
        !router.streams_for(name.as_bytes(), asking).is_empty()
    }
}

impl Router {
    /// Where groups with a kept member have what is published on the topic written down.
    fn homes_of_kept_groups(
        &mut self,
        cx: &mut Context,
        groups: &Groups,
        topic: Name<'_, [u8]>,
    ) -> u64 {
        if groups.is_empty() {
            return 0;
        }
        let audience = self.audience_here(topic, &mut cx.flow.work);
        let mut homes = 0;
        for group in audience.groups() {
            if groups.has_durable_member(*group)
                && let Some(name) = groups.name(*group)
            {
                homes |= 1 << cx.shared.place_of_group(name.key);
            }
        }
        self.keep(audience);
        homes
    }
}
