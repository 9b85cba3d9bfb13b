//! Who is a member of a group: every shard knows all.

use std::sync::Arc;

use session::NEVER;
use topic::FilterId;

use crate::parts::groups::{Group, Groups};
use crate::parts::subscriptions::Listed;
use crate::parts::work::Task;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::words::member::Member;
use crate::words::queue_number::KeptId;
use crate::{GroupText, Mail, Scope, SessionKey, Shard};

/// How long messages wait for the first member of a group that is not known yet.
const MEMBERLESS_MS: u64 = 2000;

impl Shard {
    /// A session of this shard subscribes. Returns what it lists then, and whether that is new.
    pub(crate) fn join_group(
        &mut self,
        slot: u32,
        (share, filter): (&str, &str),
        (bits, identifier): (u8, u32),
    ) -> (Listed, bool) {
        self.cx.flow.work.charge_for(Task::Membership(self.cx.shared.homes.places()));
        let scope = self.sessions.get(slot).map_or(Scope::FIRST, |client| client.scope);
        let name = self.group_name(GroupText::new(scope, share, filter));
        let key = name.key;
        let member_key = self.sessions.key(slot);
        let Some(client) = self.sessions.get_mut(slot).expected() else {
            return (Listed::new(FilterId(0), 0), false);
        };
        let load = client.load.get_or_insert_default().clone();
        let is_durable = client.is_kept;
        client.publish_load();
        let member = Member { key: member_key, load, options: bits, identifier, is_durable };
        let is_new = self.on_join(&name, member.clone());
        if is_new {
            name.add_member();
        }
        self.cx.send_to_shards(&Mail::Join { group: name, member });
        let number = self.groups.number(key).unwrap_or_default();
        let filter = self.groups.get(number).map_or(FilterId(0), |group| group.filter);
        (Listed::new(filter, number + 1), is_new)
    }

    pub(crate) fn group_name(&self, text: GroupText<'_>) -> Arc<GroupName> {
        let known = self.groups.find(text).and_then(|number| self.groups.name(number));
        known.cloned().unwrap_or_else(|| self.cx.shared.group_names.get(text))
    }

    /// A group that the log knows, before its members are back.
    pub(crate) fn restore_group(&mut self, name: &Arc<GroupName>, kept: KeptId) {
        let number = self.know_group_for_now(name);
        if let Some(group) = self.groups.get_mut(number) {
            group.kept = Some(kept);
        }
    }

    /// Somebody joined, here or on another shard. True if it was not a member before.
    pub(crate) fn on_join(&mut self, name: &Arc<GroupName>, member: Member) -> bool {
        let number = self.know_group(name, NEVER);
        let Some(group) = self.groups.get_mut(number).expected() else { return false };
        group.forget_at_ms = NEVER;
        let shard = member.key.shard();
        if !group.members.put(member) {
            return false;
        }
        // Its shard may never have heard that the queue here is not empty.
        if group.is_announced && shard != self.cx.id {
            self.cx.send(shard, Mail::Waiting { group: name.key, any: true });
        }
        true
    }

    /// A session of this shard is connected again: all shards look at it once more when they choose
    /// members of its groups.
    pub(crate) fn note_online(&mut self, slot: u32) {
        let Self { cx, sessions, groups, .. } = self;
        let Some(client) = sessions.get(slot).expected() else { return };
        for listed in client.subscriptions.shared() {
            let Some(group) = groups.get_mut(listed.group - 1).expected() else { continue };
            cx.flow.work.charge_for(Task::Membership(cx.shared.homes.places()));
            group.members.note_online(client.key);
            let (group, member) = (group.name.key, client.key);
            cx.send_to_shards(&Mail::Online { group, member });
        }
    }

    /// The group's number on this shard, which forgets it soon if no member comes.
    pub(super) fn know_group_for_now(&mut self, name: &Arc<GroupName>) -> u32 {
        self.know_group(name, self.cx.now_ms + MEMBERLESS_MS)
    }

    /// The group's number on this shard; it gets one if it is new.
    fn know_group(&mut self, name: &Arc<GroupName>, forget_at_ms: u64) -> u32 {
        if let Some(number) = self.groups.number(name.key) {
            return number;
        }
        let number = self.groups.next_number();
        let filter = self.sessions.router.add_group(name.filter_name(), number);
        self.groups.insert(Group::new(name.clone(), filter, forget_at_ms))
    }

    /// A session of this shard unsubscribes or ends.
    pub(crate) fn leave_group(&mut self, number: u32, member: SessionKey) {
        let Some(group) = self.groups.get(number).expected() else { return };
        let key = group.name.key;
        self.cx.flow.work.charge_for(Task::Membership(self.cx.shared.homes.places()));
        self.cx.send_to_shards(&Mail::Leave { group: key, member });
        self.remove_member(number, member);
    }

    pub(crate) fn on_leave(&mut self, key: u64, member: SessionKey) {
        if let Some(number) = self.groups.number(key) {
            self.remove_member(number, member);
        }
    }

    fn remove_member(&mut self, number: u32, member: SessionKey) {
        let Some(group) = self.groups.get_mut(number).expected() else { return };
        group.members.remove(member);
        if group.members.is_empty() {
            self.forget_group(number);
        }
    }

    pub(super) fn forget_group(&mut self, number: u32) {
        let Some(group) = self.groups.remove(number).expected() else { return };
        self.sessions.router.remove_group(group.filter, number);
        let waiting = u64::from(group.queue.amount().messages);
        let (serials, lists) = group.queue.into_parts();
        let kept = group.kept.zip(self.log.as_mut());
        let lost = waiting + kept.map_or(0, |(kept, log)| log.close_group_queue(kept, &serials));
        lists.into_iter().for_each(|list| self.sessions.discard_parked(list));
        if lost > 0 {
            self.cx.note_group_dropped(&group.name, lost);
        }
    }
}

impl Groups {
    pub(crate) fn on_online(&mut self, key: u64, member: SessionKey) {
        // It may have left the group, or that may have ended.
        if let Some(group) = self.by_key_mut(key) {
            group.members.note_online(member);
        }
    }

    /// A session of this shard does not list it any more: it is a member no longer, whoever still
    /// has to hear of it.
    pub(crate) fn note_left(&self, listed: Listed) {
        if let Some(number) = listed.group.checked_sub(1)
            && let Some(name) = self.name(number).expected()
        {
            name.remove_member();
        }
    }
}
