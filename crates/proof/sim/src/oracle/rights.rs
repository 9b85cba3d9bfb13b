//! Who may do what, at each moment.

use std::collections::BTreeMap;

use broker::ShardId;

use super::Oracle;
use crate::policy::{Person, Policy};

/// Rules and credentials as the broker has them now. Empty where there are no rules.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// Each shard is told of new ones at a time of its own.
    policies: Vec<Policy>,
    persons: BTreeMap<u32, Known>,
    /// Who was somebody else until now: the connection before ends by what held for it.
    admitting: Option<(u32, Policy, Person)>,
}

/// A client as the shard of its session knows it.
#[derive(Debug)]
struct Known {
    shard: ShardId,
    person: Person,
    is_banned: bool,
    /// What held when bytes were written that the client has yet to read: up to which of them.
    before: Vec<(u64, Policy, Person)>,
}

impl Rights {
    pub(crate) fn new(policies: Vec<Policy>) -> Self {
        Self { policies, ..Self::default() }
    }

    pub(crate) const fn are_in_force(&self) -> bool {
        !self.policies.is_empty()
    }

    fn policy_of(&self, known: &Known) -> &Policy {
        &self.policies[usize::from(known.shard)]
    }

    /// May the session be given a message now?
    pub(super) fn may_receive(&self, client: u32, topic: &str) -> bool {
        let known = self.persons.get(&client);
        known.is_none_or(|known| self.policy_of(known).may_receive(&known.person, topic))
    }

    /// The same, also if it is just becoming somebody else.
    pub(super) fn may_receive_at_once(&self, client: u32, topic: &str) -> bool {
        let before = self.admitting.as_ref().filter(|(who, ..)| *who == client);
        self.may_receive(client, topic)
            && before.is_none_or(|(_, policy, person)| policy.may_receive(person, topic))
    }

    /// May the bytes from `at` on of its connection be a message on the topic?
    pub(super) fn may_have_received(&self, client: u32, topic: &str, at: u64) -> bool {
        let Some(known) = self.persons.get(&client) else { return true };
        let mut before = known.before.iter().filter(|(until, ..)| at < *until);
        !known.is_banned && self.may_receive(client, topic)
            || before.any(|(_, policy, person)| policy.may_receive(person, topic))
    }

    /// May the will of a client be published in this moment?
    pub(super) fn may_leave(&self, client: u32, topic: &str) -> bool {
        match &self.admitting {
            Some((who, policy, person)) if *who == client => policy.may_publish(person, topic),
            _ => self.may_publish(client, topic),
        }
    }

    /// What was to be done for a new connection is done.
    pub(crate) fn settle(&mut self) {
        self.admitting = None;
    }

    pub(super) fn may_publish(&self, client: u32, topic: &str) -> bool {
        let known = self.persons.get(&client);
        known.is_none_or(|known| self.policy_of(known).may_publish(&known.person, topic))
    }
}

impl Oracle {
    /// Before something changes for a client: the bytes before `until` of its connection are
    /// written.
    pub(crate) fn on_written_so_far(&mut self, client: u32, until: u64) {
        let Some(known) = self.rights.persons.get(&client) else { return };
        if known.is_banned {
            return;
        }
        let (policy, person) = (self.rights.policy_of(known).clone(), known.person.clone());
        if let Some(known) = self.rights.persons.get_mut(&client) {
            known.before.push((until, policy, person));
        }
    }

    /// A shard has new rules.
    pub(crate) fn on_policy(&mut self, shard: ShardId, policy: Policy) {
        if let Some(place) = self.rights.policies.get_mut(usize::from(shard)) {
            *place = policy;
        }
        self.on_rights();
    }

    /// A client has shown who it is, on a connection of which nothing is written yet if it
    /// `is_new`.
    pub(crate) fn on_person(&mut self, client: u32, shard: ShardId, person: Person, is_new: bool) {
        if !self.rights.are_in_force() {
            return;
        }
        self.trace.note(|| format!("client {client} is {person:?}"));
        let known = self.rights.persons.remove(&client);
        if let Some(known) = known.as_ref().filter(|_| is_new) {
            let policy = self.rights.policy_of(known).clone();
            self.rights.admitting = Some((client, policy, known.person.clone()));
        }
        let before = match known {
            Some(known) if !is_new => known.before,
            _ => Vec::new(),
        };
        let known = Known { shard, person, is_banned: false, before };
        self.rights.persons.insert(client, known);
        self.on_rights();
    }

    /// Nothing may reach it any more.
    pub(crate) fn on_banned(&mut self, client: u32) {
        if let Some(known) = self.rights.persons.get_mut(&client) {
            known.is_banned = true;
        }
    }

    /// What nobody may send or have any more is not promised; what somebody may is, from now on.
    fn on_rights(&mut self) {
        let rights = &self.rights;
        for ((topic, payload), message) in &mut self.messages {
            let is_allowed = rights.may_publish(payload.publisher, topic);
            message.was_allowed |= is_allowed;
            // Once it is acknowledged it has come.
            message.was_forbidden |= !is_allowed && message.acknowledged_ms.is_none();
            message.owed.retain(|session, _| rights.may_receive(*session, topic));
        }
    }
}
