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
use crate::parts::groups::Group;
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
            self.drain_group(key);
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
        if way.serial != 0 {
            self.take_back(number, way.serial, true);
            return;
        }
        let Self { cx, groups, log, .. } = self;
        if let Some(group) = groups.get_mut(number).expected() {
            group.queue.wait(way.number, message, true, cx.now_ms);
            group.keep_to_limits(cx, log.as_deref_mut());
        }
    }

    /// They stand with what waits for a member again.
    fn put_back_denied(&mut self, key: u64, most: usize) -> usize {
        let Self { cx, groups, log, .. } = self;
        let Some(group) = groups.by_key_mut(key).expected() else { return 0 };
        group.drop_expired(cx, log.as_deref_mut());
        let (count, gone) = group.queue.readmit(most, cx.now_ms);
        group.give_up(log.as_deref_mut(), gone);
        count
    }

    /// The keys of those at home with messages that no member with room may have.
    pub(crate) fn with_denied(&self) -> Vec<u64> {
        let has_denied = |group: &&Group| group.queue.has_denied();
        let groups = self.groups.places.iter().map(|(_, group)| group);
        groups.filter(has_denied).map(|group| group.name.key).collect()
    }

    /// The member's side: nobody with room may have the message.
    pub(super) fn put_off_denied(&mut self, number: u32, message: &Message, way: GroupWay) {
        let Self { cx, groups, .. } = self;
        let Some(name) = groups.name(number).cloned().expected() else { return };
        // Who had no room when the others were asked may have it.
        if !way.has_skipped || message.qos() == QoS::AtMostOnce {
            cx.note_group_dropped(&name, 1);
            cx.notify_home(name.key, way.serial, true);
            return;
        }
        let home = cx.shared.place_of_group(name.key);
        cx.send(home, Mail::GroupDenied { group: name, message: message.clone(), way });
    }
}
