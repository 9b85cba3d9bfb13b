//! Memory that gets short, as the guard of the server tells it.
//!
//! How much is left is always some more than any honest user holds, or all of them where they are
//! one namespace of two: they keep within their share, whatever the hostile ones do.

use broker::{Memory, NO_CONNECTION, Name};
use driver::Item;
use session::MemoryKind;

use super::Wire;
use crate::sabotage::Sabotage;
use crate::world::World;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pressure {
    level: Memory,
}

/// What honest users may take between two looks, beside their largest messages.
const MARGIN_BYTES: u64 = 64 * 1024;

/// Messages that may come for one user between two looks.
const MARGIN_MESSAGES: u64 = 150;

/// Each cuts those who have half as much as the first, or more: none is left of 64 bits.
const CUT_ROUNDS: usize = 64;

/// A connection that holds less is not worth it (`broker/pace/shortage.rs`), with what a packet may
/// have more than its bytes.
const CUT_BYTES_MIN: usize = 17 * 1024;

impl World {
    /// Memory gets short, or is looked at, or is enough again.
    pub(super) fn feel_pressure(&mut self) -> Result<(), String> {
        let mob = &mut self.mob;
        let was = mob.pressure.level;
        mob.pressure.level = match (was, mob.random.below(10)) {
            (Memory::Enough, 0..=2) => Memory::Tight,
            (Memory::Enough | Memory::Tight, 3..=5) => Memory::Short,
            (Memory::Tight | Memory::Short, 0) => Memory::Enough,
            (level, _) => level,
        };
        let is = mob.pressure.level;
        if was != is {
            self.note(|| format!("memory is {is:?}"));
        }
        self.set_memory_left();
        match is {
            Memory::Enough => {
                self.node.shared.set_memory(is);
                Ok(())
            }
            Memory::Short if self.mob.random.chance(20) => self.cut_all_greedy(),
            _ => self.look_at_memory(),
        }
    }

    /// The guard of the server looks twenty times a second.
    pub(crate) fn set_memory_left(&mut self) {
        let level = self.mob.pressure.level;
        if level == Memory::Enough {
            return;
        }
        let left = self.memory_left();
        self.node.shared.set_memory_left(level, left);
    }

    /// More than any honest user holds, and than it may take before the next look.
    fn memory_left(&self) -> u64 {
        if self.node.sabotage == Some(Sabotage::RefuseAll) {
            return 0;
        }
        let margin = MARGIN_BYTES + MARGIN_MESSAGES * self.padding_max as u64;
        let honest = self.honest_accounts();
        let ledger = &self.node.shared.ledger;
        let totals = honest.iter().map(|name| ledger.account(name).total());
        match self.mob.is_tenant() {
            true => 2 * totals.sum::<u64>() + honest.len() as u64 * margin,
            false => 2 * totals.max().unwrap_or_default() + margin,
        }
    }

    fn look_at_memory(&mut self) -> Result<(), String> {
        let ledger = &self.node.shared.ledger;
        if self.mob.pressure.level == Memory::Short {
            match self.node.sabotage {
                Some(Sabotage::SpareLargest) => ledger.cut_nobody(),
                _ => ledger.cut_largest(ledger.bytes(MemoryKind::Unsent) / 2 + 1),
            }
        }
        self.node.put_to_all(|| Item::MemoryLook);
        (0..self.node.drivers.len()).try_for_each(|index| self.turn_if_awake(index))
    }

    /// So much has to be freed that none is spared who holds more than it leaves to others.
    fn cut_all_greedy(&mut self) -> Result<(), String> {
        for _ in 0..CUT_ROUNDS {
            // What honest users hold is counted anew by each look.
            self.set_memory_left();
            self.look_at_memory()?;
        }
        let ledger = &self.node.shared.ledger;
        let most = ledger
            .largest_of(MemoryKind::Unsent, 1)
            .first()
            .map_or(0, |h| h.bytes[MemoryKind::Unsent as usize]);
        let left = self.memory_left();
        let accounts = self.mob.accounts();
        // In a namespace of their own all of them are greedy together.
        let is_crowd = self.mob.is_tenant()
            && accounts.iter().map(|name| ledger.account(name).total()).sum::<u64>() > left;
        let is_greedy = |name: &String| {
            let account = ledger.account(name);
            (is_crowd || account.total() > left) && account.bytes(MemoryKind::Unsent) >= most / 2
        };
        let greedy: Vec<String> = accounts.into_iter().filter(is_greedy).collect();
        for who in 0..self.mob.members.len() {
            let member = &self.mob.members[who];
            let name = member.name();
            let is_meant = |wire: &&Wire| greedy.contains(&wire.account) && !wire.pipe.is_over();
            let Some(wire) = member.wire.as_ref().filter(is_meant) else { continue };
            let unread = wire.to_broker.len() + wire.pipe.under_way().0;
            let unfinished = member.tail_bytes.saturating_sub(unread);
            let place = self.node.place_of(Name::new(self.mob.scope, &wire.client_id));
            if place.connection == NO_CONNECTION {
                // It was told to go, and has not read that yet.
                continue;
            }
            let unsent = self.node.unsent(place) + unfinished;
            if unsent >= CUT_BYTES_MIN {
                return Err(format!(
                    "{name} holds most, {unsent} bytes in one connection, and is spared"
                ));
            }
        }
        Ok(())
    }
}
