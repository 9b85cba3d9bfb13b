//! What is charged to whom, when all is over: every byte is given back.

use broker::command::Publication;
use broker::{Answer, Command, Durability, Scope, ShardId};
use codec::QoS;
use driver::{Asked, Item};
use session::MemoryKind;

use crate::world::World;

/// The address of all honest clients.
pub(crate) const HONEST_ADDRESS: &str = "10.1.1.1";

/// Rounds in which everything that was retained has to be gone.
const CLEAR_ROUNDS_MAX: usize = 1000;

/// Commands that operators give to shards.
#[derive(Default)]
pub(crate) struct Asking {
    /// How many there were. Each has its number.
    pub(crate) count: u32,
    /// The one that is being given, and its answer.
    pub(crate) now: Option<u32>,
    pub(crate) answer: Option<Answer>,
}

impl World {
    /// The accounts of those who keep to the rules; `without a name` is what a start makes of those
    /// who have none.
    pub(crate) fn honest_accounts(&self) -> Vec<String> {
        let of_users = self.clients.iter().filter_map(|client| client.username.as_ref());
        let mut names: Vec<String> = of_users.map(|name| format!("user {name}")).collect();
        names.push(format!("address {HONEST_ADDRESS}"));
        names.sort();
        names.dedup();
        names
    }

    /// The hostile ones have gone, and their sessions have expired: what is retained of them is all
    /// that is charged to them, in memory and in the journals.
    pub(crate) fn judge_mob(&mut self) -> Result<(), String> {
        let ledger = &self.node.shared.ledger;
        for name in self.mob.accounts() {
            let account = ledger.account(&name);
            let retains = account.bytes(MemoryKind::Retained) > 0;
            for held in MemoryKind::ALL {
                let is_retained = match held {
                    MemoryKind::Retained => true,
                    MemoryKind::Logged => retains,
                    _ => false,
                };
                let bytes = account.bytes(held);
                if bytes > 0 && !is_retained {
                    return Err(format!("{name} has gone, and pays for {bytes} bytes {held:?}"));
                }
            }
        }
        Ok(())
    }

    /// An operator ends all sessions and clears all that is retained: nobody pays for anything.
    pub(crate) fn judge_ledger(&mut self) -> Result<(), String> {
        let ids: Vec<String> = self.clients.iter().map(|client| client.id.clone()).collect();
        for id in ids {
            self.switch_to_cell(self.node.shared.cell_of_client(&id));
            self.command(self.shard_of(&id), Command::Purge(id.as_str().into()))?;
        }
        self.let_all_move()?;
        self.empty_namespace()?;
        for cell in self.cell_numbers() {
            for _ in 0..CLEAR_ROUNDS_MAX {
                self.switch_to_cell(cell);
                if !self.clear_some_retained()? {
                    break;
                }
                self.let_all_move()?;
            }
        }
        self.end_streams()?;
        self.cell_numbers().try_for_each(|cell| {
            self.switch_to_cell(cell);
            self.judge_ledger_of_current()
        })
    }

    fn judge_ledger_of_current(&self) -> Result<(), String> {
        let shared = &self.node.shared;
        for held in MemoryKind::ALL {
            let bytes = shared.ledger.bytes(held);
            if bytes > 0 {
                let who = shared.ledger.largest_of(held, 3);
                return Err(format!(
                    "all is over, and {bytes} bytes {held:?} are charged: {who:?}"
                ));
            }
        }
        let counts = [
            ("sessions", shared.total(|metrics| &metrics.sessions)),
            ("subscriptions", shared.total(|metrics| &metrics.subscriptions)),
            ("retained messages", shared.total(|metrics| &metrics.retained)),
            ("retained bytes", shared.total(|metrics| &metrics.retained_bytes)),
        ];
        match counts.iter().find(|(_, count)| *count > 0) {
            Some((what, count)) => Err(format!("all is over, and {count} {what} are counted")),
            None => Ok(()),
        }
    }

    fn shard_of(&self, client_id: &str) -> ShardId {
        self.node.shared.place_of_client(broker::Name::first(client_id))
    }

    /// Asks a shard, and returns what it answers at once.
    pub(crate) fn command(
        &mut self,
        shard: ShardId,
        command: Command,
    ) -> Result<Option<Answer>, String> {
        self.command_in(Scope::FIRST, shard, command)
    }

    pub(crate) fn command_in(
        &mut self,
        scope: Scope,
        shard: ShardId,
        command: Command,
    ) -> Result<Option<Answer>, String> {
        self.asking.count += 1;
        let asker = self.asking.count;
        (self.asking.now, self.asking.answer) = (Some(asker), None);
        let asked = Asked { shard, scope, command, answer: asker };
        self.node.put(shard, Item::Command(Box::new(asked)));
        self.take_turn(self.node.driver_of(shard), None)?;
        self.asking.now = None;
        Ok(self.asking.answer.take())
    }

    /// False: there was nothing any more.
    fn clear_some_retained(&mut self) -> Result<bool, String> {
        let mut any = false;
        for shard in 0..self.node.shard_count() {
            let page = Command::Retained { filter: "#".into(), after: None, max: 100 };
            let answer = self.command(shard, page)?;
            let Some(Answer::Retained { messages, .. }) = answer else {
                return Err("a page of retained messages is not answered".into());
            };
            for message in messages {
                any = true;
                let clearing = Command::Publish(clearing(message.topic()));
                self.command(shard, clearing)?;
            }
        }
        Ok(any)
    }
}

fn clearing(topic: &str) -> Publication {
    Publication {
        topic: topic.into(),
        properties: Box::default(),
        payload: Box::default(),
        qos: QoS::AtLeastOnce,
        retain: true,
        expiry_secs: None,
        durability: Durability::Fsync,
    }
}
