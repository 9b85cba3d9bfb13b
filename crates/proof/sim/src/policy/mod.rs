//! Rules that change while the broker runs, credentials that say what clients are, and operators
//! who end what they like.
//!
//! Each shard hears of new rules at a time of its own; a start has the newest. What a credential
//! says of a client is not in the journal, so a new process knows it when the client is back.

mod model;
mod operators;

use std::collections::{BTreeMap, BTreeSet};

use broker::command::Publication;
use broker::{
    Answer, Command, ConnectRequest, Ended, NO_CONNECTION, Name, Reauthenticated, ShardId,
};
use codec::{QoS, Reason, Version};
use policy::Access;
use policy::Principal;

use crate::client::OwnedPublish;
use crate::oracle::{GROUP_KEEPER, Payload, Rights};
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::service::asking;
use crate::world::World;
pub(crate) use model::{Person, Policy, compile};
use operators::Shown;

/// Who steers the broker of a world, if anybody does.
#[derive(Debug)]
pub(crate) struct Steering {
    is_on: bool,
    random: Random,
    /// The newest rules.
    policy: Policy,
    /// Shards that have yet to hear of them.
    untold: Vec<ShardId>,
    banned: BTreeSet<usize>,
    /// When the credential of a client ends.
    expires_ms: BTreeMap<usize, u64>,
    /// Publishes of operators that are not answered.
    pub(crate) publications: BTreeMap<u32, OwnedPublish>,
    published: u32,
    shown: Shown,
    /// When the process last stood still.
    pub(crate) calm_since_ms: u64,
}

/// Operators publish under numbers from this one on: each message is in no order with others.
const OPERATORS: u32 = 900;

/// Of a hundred steps of the world, those in which something is steered.
const STEPS_PERCENT: usize = 3;

/// After the end of its credential a connection may be there for so long. While the process stands
/// still, and for two seconds after that, it waits for what clients said meanwhile.
const EXPIRY_SLACK_MS: u64 = 5000;

impl Steering {
    pub(crate) fn new(is_on: bool, seed: u64) -> Self {
        let mut random = Random::new(seed ^ (1 << 59));
        let policy = if is_on { Policy::choose(&mut random) } else { Policy::open() };
        Self {
            is_on,
            random,
            policy,
            untold: Vec::new(),
            banned: BTreeSet::new(),
            expires_ms: BTreeMap::new(),
            publications: BTreeMap::new(),
            published: 0,
            shown: Shown::default(),
            calm_since_ms: 0,
        }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// None: it would be retained where an earlier one may still become so.
    fn draft(&mut self) -> Option<OwnedPublish> {
        let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][self.random.below(2)];
        let retain = self.random.chance(30);
        let topic = match retain {
            true => format!("r/o/{}", self.random.below(2)),
            false => format!("t/{}/{}", self.random.below(3), self.random.below(3)),
        };
        if retain && self.publications.values().any(|publish| publish.topic == topic) {
            return None;
        }
        self.published += 1;
        let payload = match retain {
            true => Payload { publisher: OPERATORS, sequence: self.published },
            false => Payload { publisher: OPERATORS + self.published, sequence: 1 },
        };
        let (is_clear, expiry_secs, padding) = (false, None, 0);
        Some(OwnedPublish { topic, qos, retain, is_clear, expiry_secs, payload, padding })
    }

    /// What the oracle knows of it at the beginning.
    pub(crate) fn rights(&self, shard_count: ShardId) -> Rights {
        match self.is_on {
            true => Rights::new(vec![self.policy.clone(); usize::from(shard_count)]),
            false => Rights::default(),
        }
    }

    pub(crate) fn is_banned(&self, who: usize) -> bool {
        self.banned.contains(&who)
    }

    /// May the broker end a connection for this?
    pub(crate) fn ends(&self, who: usize, ended: &Ended, now_ms: u64) -> bool {
        match ended {
            Ended::Administrative | Ended::Banned => self.is_on,
            Ended::CredentialExpired => self.expires_ms.get(&who).is_some_and(|at| *at <= now_ms),
            _ => false,
        }
    }
}

impl World {
    /// The rules of the broker.
    pub(crate) fn access(&self) -> Access {
        match self.steering.is_on {
            true => compile(&[self.steering.policy.rules(), self.mob.rules()].concat()),
            false if self.service.is_on() => asking(),
            false => self.mob.access(),
        }
    }

    /// The rules that there are from the beginning.
    pub(crate) fn set_first_policy(&mut self) {
        let access = self.access();
        let shards = 0..self.node.shard_count();
        shards.for_each(|shard| self.node.shard(shard).set_access(access.clone()));
    }

    /// A new process has the newest rules.
    pub(crate) fn start_steering(&mut self) {
        if !self.steering.is_on {
            return;
        }
        self.steering.untold.clear();
        self.steering.publications.clear();
        self.steering.shown = Shown::default();
        for shard in 0..self.node.shard_count() {
            self.oracle.on_policy(shard, self.steering.policy.clone());
        }
    }

    /// Something is changed, asked or ended.
    pub(crate) fn steer(&mut self) -> Result<(), String> {
        if !self.steering.is_on {
            return Ok(());
        }
        self.judge_credentials()?;
        if !self.steering.untold.is_empty() && self.steering.random.chance(20) {
            self.apply_policy()?;
        }
        if !self.steering.random.chance(STEPS_PERCENT) {
            return Ok(());
        }
        let who = self.steering.random.below(self.clients.len());
        match self.steering.random.below(13) {
            0..=1 if self.steering.untold.is_empty() => {
                let policy = Policy::choose(&mut self.steering.random);
                self.change_policy(policy);
            }
            2..=4 => self.renew(who)?,
            5 => self.kick(who)?,
            6 => self.ban_or_pardon(who)?,
            7..=8 => self.purge(who)?,
            9 => self.disconnect(who)?,
            10 => self.trace_anew(),
            _ => self.publish_as_operator()?,
        }
        Ok(())
    }

    fn change_policy(&mut self, policy: Policy) {
        self.note(|| format!("new rules: {policy:?}"));
        self.steering.policy = policy;
        self.steering.untold = (0..self.node.shard_count()).collect();
    }

    /// One of the shards hears of the newest rules.
    fn apply_policy(&mut self) -> Result<(), String> {
        let steering = &mut self.steering;
        let shard = steering.untold.swap_remove(steering.random.below(steering.untold.len()));
        for who in 0..self.clients.len() {
            self.note_written(who);
        }
        if self.node.sabotage != Some(Sabotage::KeepOldRules) {
            let access = self.access();
            self.node.shard(shard).set_access(access);
        }
        self.note(|| format!("shard {shard} has the new rules"));
        self.oracle.on_policy(shard, self.steering.policy.clone());
        self.turn_for(shard)
    }

    /// What is written to a client by now was written by the rules of until now.
    fn note_written(&mut self, who: usize) {
        let Some(wire) = &self.clients[who].wire else { return };
        let Some(place) = wire.place else { return };
        if place.connection == NO_CONNECTION {
            // It was over before the world heard of it: all that will come is written.
            self.oracle.on_written_so_far(self.clients[who].number, u64::MAX);
            return;
        }
        // Also what may not be told yet, and what is on its way.
        let on_its_way = self.lines.get(&who).map_or(0, |line| line.pipe.unread());
        let unsent = self.node.unsent(place) + on_its_way;
        let until = wire.read_bytes + (wire.to_client.len() + unsent) as u64;
        self.oracle.on_written_so_far(self.clients[who].number, until);
    }

    /// A client is about to be admitted: who is it, and until when?
    pub(crate) fn show_credential(
        &mut self,
        who: usize,
        request: &mut ConnectRequest,
    ) -> (Option<Person>, Option<u64>) {
        if !self.steering.is_on {
            return (None, None);
        }
        let random = &mut self.steering.random;
        let person = Person::choose(self.clients[who].username.clone(), random);
        let lives_ms = 5_000 + random.below(60_000) as u64;
        let expires_at_ms = random.chance(15).then_some(self.now_ms + lives_ms);
        let attributes = person.attributes();
        let keeps = self.node.sabotage == Some(Sabotage::KeepCredentials);
        let principal = Principal {
            attributes,
            expires_at_ms: expires_at_ms.filter(|_| !keeps),
            ..Principal::default()
        };
        request.principal = Some(Box::new(principal));
        (Some(person), expires_at_ms)
    }

    pub(crate) fn note_expiry(&mut self, who: usize, expires_at_ms: Option<u64>) {
        match expires_at_ms {
            Some(at_ms) => self.steering.expires_ms.insert(who, at_ms),
            None => self.steering.expires_ms.remove(&who),
        };
    }

    /// A client authenticates anew, and is something else by then.
    fn renew(&mut self, who: usize) -> Result<(), String> {
        let Some(wire) = &self.clients[who].wire else { return Ok(()) };
        let is_there = wire.is_acknowledged && self.clients[who].version == Version::V5;
        let Some(place) = wire.place.filter(|_| is_there) else { return Ok(()) };
        if !self.node.admitted.contains_key(&wire.arrival) {
            return Ok(());
        }
        self.note_written(who);
        let random = &mut self.steering.random;
        let person = Person::choose(self.clients[who].username.clone(), random);
        let expires_at_ms = random.chance(30).then_some(self.now_ms + 20_000);
        let attributes = person.attributes();
        let principal = Principal { attributes, expires_at_ms, ..Principal::default() };
        self.note_expiry(who, expires_at_ms);
        let answer = Reauthenticated::Renewed(Box::new(principal));
        if self.node.sabotage != Some(Sabotage::KeepOldPrincipal) {
            let core = self.node.shard(place.shard);
            core.on_reauthenticated(place.slot, place.connection, &answer, self.now_ms);
        }
        self.oracle.on_person(self.clients[who].number, place.shard, person, false);
        self.turn_for(place.shard)
    }

    fn place_of_client(&self, who: usize) -> ShardId {
        self.node.shared.place_of_client(Name::first(&self.clients[who].id))
    }

    fn kick(&mut self, who: usize) -> Result<(), String> {
        self.note(|| format!("an operator ends the connection of client {who}"));
        let command = Command::Kick(self.clients[who].id.as_str().into());
        self.command(self.place_of_client(who), command).map(drop)
    }

    /// Who is banned is cut, and not admitted again before that is taken back.
    fn ban_or_pardon(&mut self, who: usize) -> Result<(), String> {
        if self.steering.banned.remove(&who) {
            self.note(|| format!("client {who} is banned no more"));
            return Ok(());
        }
        if self.node.admitted.values().any(|admitted| admitted.who == who && !admitted.is_open) {
            // In the server it is looked at again when it is opened.
            return Ok(());
        }
        self.note(|| format!("client {who} is banned"));
        self.steering.banned.insert(who);
        self.note_written(who);
        let number = self.clients[who].number;
        if self.steering.random.chance(50) && self.node.sabotage != Some(Sabotage::KeepBanned) {
            // What was sent to the shard before the command is handled first, so its connection
            // may get something by the old rules until then.
            self.end_banned(who)?;
            self.note_written(who);
            self.oracle.on_banned(number);
            return Ok(());
        }
        self.oracle.on_banned(number);
        let (shard, now_ms) = (self.place_of_client(who), self.now_ms);
        if self.node.sabotage != Some(Sabotage::KeepBanned) {
            let id = self.clients[who].id.clone();
            self.node.shard(shard).on_bans(|client, _, _| client.text() == id, now_ms);
            self.turn_for(shard)?;
        }
        Ok(())
    }

    /// An operator ends a session, with all that waits for it.
    fn purge(&mut self, who: usize) -> Result<(), String> {
        if self.clients[who].number == GROUP_KEEPER || !self.clients[who].is_persistent() {
            return Ok(());
        }
        self.note(|| format!("an operator ends the session of client {who}"));
        self.purging = Some(who);
        let command = Command::Purge(self.clients[who].id.as_str().into());
        let answer = match self.node.sabotage {
            Some(Sabotage::ForgetPurge) => Some(Answer::Done(true)),
            _ => self.command(self.place_of_client(who), command)?,
        };
        self.purging = None;
        if !matches!(answer, Some(Answer::Done(true))) {
            return Ok(());
        }
        if self.clients[who].wire.as_ref().is_some_and(|wire| wire.place.is_some()) {
            // What it reads from now on is of no session.
            self.lose_process(who)?;
        }
        let number = self.clients[who].number;
        self.oracle.on_purged(number);
        self.clients[who].fate.on_purged();
        self.oracle.on_session_start(number);
        Ok(())
    }

    fn publish_as_operator(&mut self) -> Result<(), String> {
        let Some(publish) = self.steering.draft() else { return Ok(()) };
        // As in the server: what is published on one topic goes through one shard.
        let shard = self.node.shared.place_of_topic(Name::first(&publish.topic));
        let command = Command::Publish(Publication {
            topic: publish.topic.as_str().into(),
            properties: Box::default(),
            payload: publish.payload.to_bytes(0).into(),
            qos: publish.qos,
            retain: publish.retain,
            expiry_secs: None,
            durability: self.limits.durability,
        });
        self.oracle.on_sent(&publish);
        let asker = self.asking.count + 1;
        self.steering.publications.insert(asker, publish);
        let answer = match self.command(shard, command)? {
            None if self.node.sabotage == Some(Sabotage::AnswerOperatorEarly) => {
                Some(Answer::Published(Reason::SUCCESS))
            }
            answer => answer,
        };
        if let Some(answer) = answer {
            self.on_answer(asker, &answer);
        }
        Ok(())
    }

    /// A command is answered: a publish that is accepted is a promise.
    pub(crate) fn on_answer(&mut self, asker: u32, answer: &Answer) {
        let Some(publish) = self.steering.publications.remove(&asker) else { return };
        match answer {
            Answer::Published(reason) if !reason.is_error() => {
                self.oracle.on_acknowledged(&publish);
            }
            // While memory is short an operator stands behind everybody.
            Answer::Published(reason) if !self.oracle.terms.may_refuse && self.mob.has_left() => {
                let rule = format!("a publish of an operator is refused: {reason:?}");
                self.broken_rule.get_or_insert(rule);
            }
            _ => self.oracle.on_refused(&publish),
        }
    }

    /// No connection outlives the credential that it was opened with.
    fn judge_credentials(&self) -> Result<(), String> {
        for (who, expires_ms) in &self.steering.expires_ms {
            let wire = self.clients[*who].wire.as_ref();
            let Some(wire) = wire.filter(|wire| wire.place.is_some()) else { continue };
            let is_open = self.node.admitted.contains_key(&wire.arrival);
            let since_ms = self.steering.calm_since_ms.max(*expires_ms);
            let late_ms = self.looked_ms.saturating_sub(since_ms);
            if is_open && late_ms > EXPIRY_SLACK_MS {
                return Err(format!(
                    "client {who} is connected {late_ms} ms after the end of its credential"
                ));
            }
        }
        Ok(())
    }

    /// Nobody is banned any more.
    pub(crate) fn pardon_all(&mut self) {
        self.steering.banned.clear();
    }

    /// From here on everybody may do everything.
    pub(crate) fn end_steering(&mut self) -> Result<(), String> {
        if self.steering.is_on {
            self.change_policy(Policy::open());
            while !self.steering.untold.is_empty() {
                self.apply_policy()?;
            }
        }
        Ok(())
    }
}
