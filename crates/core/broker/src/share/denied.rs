//! Messages of shared groups that no member with room may have, by the access rules.
//!
//! Who may have them may be away or busy at that moment. To offer them to the others again and
//! again would keep the shards busy for nothing, so they wait at the group's home, and are offered
//! once a second, some at a time. One that all members were asked to take, and none may, is
//! dropped.

use std::sync::Arc;

use codec::QoS;
use session::Message;

use crate::Shard;
use crate::parts::groups::{Group, Groups};
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::{GroupWay, Mail};

/// Messages that are offered again in a second, of all groups of a shard.
const RETRIES_MAX: usize = 256;

/// Of one group.
const RETRIES_PER_GROUP_MAX: usize = 64;

impl Shard {
    /// The home's side, once a second.
    pub(crate) fn offer_denied_again(&mut self) {
        let mut keys = self.with_denied();
        if keys.is_empty() {
            return;
        }
        // None is always behind the others.
        let first = self.cx.next_random() as usize % keys.len();
        keys.rotate_left(first);
        let mut left = RETRIES_MAX;
        for key in keys {
            left -= self.put_back_denied(key, left.min(RETRIES_PER_GROUP_MAX));
            self.groups.drain_group(&mut self.cx, &mut self.durable, key);
        }
    }

    /// The home's side.
    pub(crate) fn on_group_denied(
        &mut self,
        name: &Arc<GroupName>,
        message: Message,
        way: GroupWay,
    ) {
        // The group may have ended while this was on its way.
        let Some(number) = self.groups.number(name.key) else { return };
        let Some(group) = self.groups.get_mut(number).expected() else { return };
        if way.serial == 0 {
            group.wait(way.number, message, true, self.cx.now_ms);
            group.keep_to_limits(&mut self.cx, &self.durable);
        } else {
            self.durable.take_back(&mut self.cx, group, way.serial, true);
        }
    }

    /// They stand with what waits for a member again.
    fn put_back_denied(&mut self, key: u64, most: usize) -> usize {
        let Some(group) = self.groups.by_key_mut(key).expected() else { return 0 };
        self.cx.drop_group_expired(group);
        let count = group.put_back_denied(most, self.cx.now_ms);
        count + group.kept.map_or(0, |kept| self.durable.put_back_denied(kept, most - count))
    }

    /// The keys of those at home with messages that no member with room may have.
    pub(crate) fn with_denied(&self) -> Vec<u64> {
        let has_denied = |group: &&Group| {
            !group.denied.is_empty() || group.kept.is_some_and(|kept| self.durable.has_denied(kept))
        };
        let groups = self.groups.places.iter().map(|(_, group)| group);
        groups.filter(has_denied).map(|group| group.name.key).collect()
    }
}

impl Groups {
    /// The member's side: nobody with room may have the message.
    pub(crate) fn put_off_denied(
        &self,
        cx: &mut Context,
        number: u32,
        message: &Message,
        way: GroupWay,
    ) {
        let Some(name) = self.name(number).cloned().expected() else { return };
        // Who had no room when the others were asked may have it.
        if !way.has_skipped || message.qos() == QoS::AtMostOnce {
            cx.note_group_dropped(&name, 1);
            cx.notify_home(name.key, way.serial, true);
            return;
        }
        let home = cx.shared.shard_of_group(name.key);
        cx.send(home, Mail::GroupDenied { group: name, message: message.clone(), way });
    }
}
