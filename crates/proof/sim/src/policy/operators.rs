//! What operators do to many clients at once: they end connections by a filter, close a namespace,
//! empty it, and look at packets.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::command::{Swept, Wanted, Whom};
use broker::{Answer, Command, Name, Scope, ShardId, TraceFilter, Traced};

use crate::sabotage::Sabotage;
use crate::world::World;

/// Of a hundred times that somebody traces anew, those in which nobody goes on.
const UNTRACED_PERCENT: usize = 40;

/// Steps of the world, of which one closes or empties the namespace of the hostile ones.
const STEPS_PER_NAMESPACE_KEPT: usize = 600;

/// Rounds in which a namespace has to be empty.
const EMPTY_ROUNDS_MAX: usize = 100;

/// Rounds that have to find nothing before it counts as empty, as in the server.
const EMPTY_LOOKS: u32 = 2;

/// Parts of a sweep of one shard: more than it has pages of anything.
const PARTS_MAX: usize = 1000;

/// Traces are about these, each with the number of its place: all, one client, a topic.
const TRACED_TOPIC: &str = "t/#";

/// What operators who trace all packets are shown.
#[derive(Debug, Default)]
pub(super) struct Shown {
    has_all: bool,
    /// Bytes of the packets to a client, by the number of its connection, if its CONNECT is shown.
    sent_bytes: BTreeMap<u32, u64>,
}

/// All packets.
const TRACE_OF_ALL: u8 = 0;

impl World {
    /// The connections that a filter wants are gone when the answer comes.
    pub(super) fn disconnect(&mut self, who: usize) -> Result<(), String> {
        let client = &self.clients[who];
        let (id, username) = (client.id.clone(), client.username.clone().unwrap_or_default());
        let mut wanted = Wanted { scope: Some(Scope::FIRST), ..Wanted::default() };
        match self.steering.random.below(3) {
            0 => wanted.id_part = Some(id.as_str().into()),
            1 => wanted.username = Some(username.as_str().into()),
            _ => wanted.connected = Some(true),
        }
        self.note(|| format!("an operator ends the connections of {wanted:?}"));
        let names = self.clients.iter().filter(|client| {
            let name = client.username.as_deref().unwrap_or_default();
            wanted.id_part.as_deref().is_none_or(|part| client.id.contains(part))
                && wanted.username.as_deref().is_none_or(|own| name == own)
        });
        let ids = names.map(|client| client.id.clone()).collect();
        self.end_all(Scope::FIRST, ids, |from| Command::Disconnect { from, wanted: wanted.clone() })
    }

    /// An operator closes the namespace of the hostile ones, or empties it, while they are there.
    pub(crate) fn keep_namespace(&mut self) -> Result<(), String> {
        let is_due = self.mob.is_tenant()
            && !self.mob.has_left()
            && self.steering.random.below(STEPS_PER_NAMESPACE_KEPT) == 0;
        match is_due {
            true if self.steering.random.chance(50) => self.cut_off(),
            true => self.empty_namespace(),
            false => Ok(()),
        }
    }

    fn cut_off(&mut self) -> Result<(), String> {
        let scope = self.mob.scope;
        self.note(|| format!("an operator closes namespace {}", scope.number()));
        self.end_all(scope, self.mob.client_ids(), |from| Command::CutOff { from })
    }

    /// As the API does after a ban.
    pub(super) fn end_banned(&mut self, who: usize) -> Result<(), String> {
        let id: Box<str> = self.clients[who].id.as_str().into();
        for shard in 0..self.node.shard_count() {
            let whom = Whom::Client(id.clone());
            let command = Command::EndBanned { from: 0, within: None, whom };
            match self.command(shard, command)? {
                Some(Answer::Ended(None)) => {}
                other => return Err(format!("ending a banned client is answered by {other:?}")),
            }
        }
        Ok(())
    }

    fn end_all(
        &mut self,
        scope: Scope,
        ids: Vec<String>,
        command: impl Fn(u32) -> Command,
    ) -> Result<(), String> {
        let mut open: Vec<(String, u64)> = Vec::new();
        for id in ids {
            open.extend(self.connection_of(scope, &id).map(|connection| (id, connection)));
        }
        for shard in 0..self.node.shard_count() {
            self.sweep_all(scope, shard, &command)?;
        }
        let still =
            |(id, connection): &&(String, u64)| self.connection_of(scope, id) == Some(*connection);
        match open.iter().find(still) {
            Some((id, _)) => Err(format!("{id} is connected after an operator has ended that")),
            None => Ok(()),
        }
    }

    fn connection_of(&self, scope: Scope, id: &str) -> Option<u64> {
        let name = Name::new(scope, id);
        let home = self.node.shared.place_of_client(name);
        self.node.shards().find(|shard| shard.id() == home)?.connection_of(name)
    }

    fn sweep(&mut self, scope: Scope, shard: ShardId, command: Command) -> Result<Swept, String> {
        if self.node.sabotage == Some(Sabotage::IgnoreSweeps) {
            return Ok(Swept { found: 0, next: None });
        }
        match self.command_in(scope, shard, command)? {
            Some(Answer::Swept(swept)) => Ok(swept),
            other => Err(format!("a sweep is answered by {other:?}")),
        }
    }

    /// Returns what there was.
    fn sweep_all(
        &mut self,
        scope: Scope,
        shard: ShardId,
        command: impl Fn(u32) -> Command,
    ) -> Result<u32, String> {
        let (mut found, mut next) = (0, Some(0));
        for _ in 0..PARTS_MAX {
            let Some(from) = next else { return Ok(found) };
            let swept = self.sweep(scope, shard, command(from))?;
            found += swept.found;
            next = swept.next;
        }
        Err(format!("a sweep of shard {shard} does not end"))
    }

    /// All that the namespace of the hostile ones has is deleted. The default one stays as it is.
    pub(crate) fn empty_namespace(&mut self) -> Result<(), String> {
        let scope = self.mob.scope;
        if scope.is_first() {
            return Ok(());
        }
        self.note(|| format!("an operator empties namespace {}", scope.number()));
        let mut empty_looks = 0;
        for _ in 0..EMPTY_ROUNDS_MAX {
            let mut found = 0;
            for shard in 0..self.node.shard_count() {
                found += self.sweep_all(scope, shard, |from| Command::Empty { from })?;
            }
            empty_looks = if found == 0 { empty_looks + 1 } else { 0 };
            if empty_looks == EMPTY_LOOKS {
                return self.judge_empty(scope);
            }
            self.let_move()?;
        }
        // Where disks are full or fail, some of it may have to wait.
        match self.oracle.terms.may_refuse {
            true => Ok(()),
            false => Err(format!("namespace {} does not become empty", scope.number())),
        }
    }

    fn judge_empty(&mut self, scope: Scope) -> Result<(), String> {
        for shard in 0..self.node.shard_count() {
            let wanted = Wanted { scope: Some(scope), ..Wanted::default() };
            let sessions = Command::Sessions { from: 0, max: 1, wanted };
            let retained = Command::Retained { filter: "#".into(), after: None, max: 1 };
            let is_empty = match self.command_in(scope, shard, sessions)? {
                Some(Answer::Sessions(page)) => page.rows.is_empty(),
                _ => false,
            };
            let is_clear = match self.command_in(scope, shard, retained)? {
                Some(Answer::Retained { messages, .. }) => messages.is_empty(),
                _ => false,
            };
            if !is_empty || !is_clear {
                return Err(format!("namespace {} is empty, and has something", scope.number()));
            }
        }
        Ok(())
    }

    /// Operators look at other packets from now on, or at none.
    pub(super) fn trace_anew(&mut self) {
        let is_off = self.steering.random.chance(UNTRACED_PERCENT);
        let all = [
            TraceFilter { number: TRACE_OF_ALL, ..TraceFilter::default() },
            TraceFilter { number: 1, client_id: Some(self.traced_client()), ..Default::default() },
            TraceFilter { number: 2, topic: Some(TRACED_TOPIC.into()), ..Default::default() },
        ];
        let chosen = all.into_iter().filter(|_| !is_off && self.steering.random.chance(60));
        let filters: Arc<[TraceFilter]> = chosen.collect();
        let shown = &mut self.steering.shown;
        shown.has_all = filters.iter().any(|filter| filter.number == TRACE_OF_ALL);
        if !shown.has_all {
            shown.sent_bytes.clear();
        }
        for shard in 0..self.node.shard_count() {
            self.node.shard(shard).set_traces(&filters);
        }
    }

    fn traced_client(&self) -> Box<str> {
        self.clients[0].id.as_str().into()
    }

    /// What is shown is what was asked for, and every packet was understood.
    pub(crate) fn judge_traced(&mut self, traced: &[Traced]) -> Result<(), String> {
        let client = self.traced_client();
        for shown in traced {
            if self.node.sabotage == Some(Sabotage::HideTraced) && self.random.chance(2) {
                continue;
            }
            self.steering.shown.note(shown);
            let topic = shown.details.topic.as_deref();
            let is_of = |number: u8| match number {
                TRACE_OF_ALL => true,
                1 => shown.client_id == client,
                2 => topic.is_some_and(|topic| topic::matches(TRACED_TOPIC, topic)),
                _ => false,
            };
            let mut traces = (0..8).filter(|number| shown.traces & (1 << number) != 0);
            let is_meant = shown.traces != 0 && traces.all(is_of);
            let is_known = shown.packet != "PUBLISH" || topic.is_some();
            // Floods are more than a shard notes.
            let is_whole = shown.lost_before == 0 || self.mob.is_there();
            if !is_meant || !is_known || !is_whole {
                return Err(format!("operators are shown {shown:?}"));
            }
        }
        Ok(())
    }

    /// Whatever a client has read was shown, if all is, from its CONNECT on.
    pub(crate) fn judge_shown(&self, who: usize) -> Result<(), String> {
        let Some(wire) = self.clients[who].wire.as_ref().filter(|_| !self.mob.is_there()) else {
            return Ok(());
        };
        match self.steering.shown.sent_bytes.get(&wire.arrival) {
            Some(shown) if wire.read_bytes > *shown => Err(format!(
                "client {who} has read {} bytes, and operators are shown {shown}",
                wire.read_bytes
            )),
            _ => Ok(()),
        }
    }
}

impl Shown {
    fn note(&mut self, shown: &Traced) {
        let Ok(arrival) = shown.address.parse() else { return };
        if !self.has_all || shown.traces & 1 << TRACE_OF_ALL == 0 {
            return;
        }
        if shown.packet == "CONNECT" {
            self.sent_bytes.insert(arrival, 0);
        } else if let Some(bytes) = self.sent_bytes.get_mut(&arrival)
            && !shown.is_from_client
        {
            *bytes += shown.bytes;
        }
    }
}
