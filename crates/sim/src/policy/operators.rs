//! What operators do to many clients at once: they end connections by a filter, close a namespace,
//! empty it, and look at packets.

use std::sync::Arc;

use broker::command::{Swept, Wanted, Whom};
use broker::{Answer, Command, Name, Scope, ShardId, TraceFilter, Traced};

use crate::sabotage::Sabotage;
use crate::world::World;

/// Of a hundred times that somebody traces anew, those in which nobody goes on.
const UNTRACED_PERCENT: usize = 40;

/// Rounds in which a namespace has to be empty.
const EMPTY_ROUNDS_MAX: usize = 1000;

/// Traces are about these, each with the number of its place: all, one client, a topic.
const TRACED_TOPIC: &str = "t/#";

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

    /// The connections of the hostile ones' namespace are ended, and those of the default namespace
    /// never are.
    pub(super) fn cut_off(&mut self) -> Result<(), String> {
        let scope = self.mob.scope;
        self.note(|| format!("an operator closes namespace {}", scope.number()));
        let ids = if scope.is_first() { Vec::new() } else { self.mob.client_ids() };
        self.end_all(scope, ids, |from| Command::CutOff { from })
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
            let mut next = Some(0);
            while let Some(from) = next {
                next = self.sweep(scope, shard, command(from))?.next;
            }
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
        let home = self.node.shared.shard_of_client(name);
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

    /// All that the namespace of the hostile ones has is deleted. The default one stays as it is.
    pub(crate) fn empty_namespace(&mut self) -> Result<(), String> {
        let scope = self.mob.scope;
        for _ in 0..EMPTY_ROUNDS_MAX {
            let mut found = 0;
            for shard in 0..self.node.shard_count() {
                found += self.sweep(scope, shard, Command::Empty { from: 0 })?.found;
            }
            self.let_move()?;
            if found == 0 {
                return Ok(());
            }
        }
        Err(format!("namespace {} does not become empty", scope.number()))
    }

    /// Operators look at other packets from now on, or at none.
    pub(super) fn trace_anew(&mut self) {
        let is_off = self.steering.random.chance(UNTRACED_PERCENT);
        let all = [
            TraceFilter { number: 0, ..TraceFilter::default() },
            TraceFilter { number: 1, client_id: Some(self.traced_client()), ..Default::default() },
            TraceFilter { number: 2, topic: Some(TRACED_TOPIC.into()), ..Default::default() },
        ];
        let chosen = all.into_iter().filter(|_| !is_off && self.steering.random.chance(60));
        let filters: Arc<[TraceFilter]> = chosen.collect();
        for shard in 0..self.node.shard_count() {
            self.node.shard(shard).set_traces(&filters);
        }
    }

    fn traced_client(&self) -> Box<str> {
        self.clients[0].id.as_str().into()
    }

    /// What is shown is what was asked for, and every packet was understood.
    pub(crate) fn judge_traced(&self, traced: &[Traced]) -> Result<(), String> {
        let client = self.traced_client();
        for shown in traced {
            let topic = shown.details.topic.as_deref();
            let is_of = |number: u8| match number {
                0 => true,
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
}
