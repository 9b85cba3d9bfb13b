//! The end of a world: everybody comes back and listens, until nothing moves any more.

use super::DrivenWorld;

/// Rounds in which the world has to come to rest.
const REST_ROUNDS_MAX: usize = 5000;

/// Rounds in which clients take what they get as slowly as before.
const NARROW_ROUNDS: usize = 50;

/// Quiet rounds that make rest: shards look through their groups once a second.
const QUIET_ROUNDS: usize = 4;

/// Turns of one driver in a round.
const TURNS_MAX: usize = 1000;

impl DrivenWorld {
    pub(super) fn come_to_rest(&mut self) -> Result<(), String> {
        if self.sabotage.is_some_and(|bug| !bug.is_of_sockets()) {
            self.sabotage = None;
        }
        let mut quiet_rounds = 0;
        for round in 0..REST_ROUNDS_MAX {
            if round >= NARROW_ROUNDS {
                self.lines.values().for_each(|line| line.pipe.widen(1 << 20));
            }
            for who in 0..self.clients.len() {
                self.listen(who)?;
            }
            self.let_move()?;
            if !self.is_at_rest() {
                quiet_rounds = 0;
                self.pass_time(20)?;
                continue;
            }
            quiet_rounds += 1;
            if quiet_rounds == QUIET_ROUNDS {
                return self.judge_layers();
            }
            self.pass_time(3000)?;
        }
        Err(format!("the world does not come to rest: {}", self.unrest()))
    }

    fn listen(&mut self, who: usize) -> Result<(), String> {
        self.clients[who].is_deaf = false;
        if self.clients[who].wire.is_none() {
            self.connect(who);
        }
        self.send(who);
        self.take(who, usize::MAX)?;
        self.clients[who].acknowledge(usize::MAX);
        Ok(())
    }

    /// Turns of all drivers that are awake, until none is.
    pub(super) fn let_move(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_MAX {
            let mut has_moved = false;
            for index in 0..self.crew.drivers.len() {
                has_moved |= self.turn(index)?;
            }
            if !has_moved {
                break;
            }
        }
        Ok(())
    }

    fn is_at_rest(&self) -> bool {
        let is_quiet = |line: &super::Line| line.door.is_none() && line.pipe.under_way() == (0, 0);
        self.clients.iter().all(|client| client.is_ready() && client.is_quiet())
            && self.lines.values().all(is_quiet)
            && self.crew.is_quiet()
    }

    /// What the layers of a socket have to say is sent without anybody's asking.
    fn judge_layers(&self) -> Result<(), String> {
        let waiting = self.lines.iter().find(|(_, line)| line.pipe.has_unsent());
        waiting.map_or(Ok(()), |(who, _)| {
            Err(format!("words of the layers of client {who} are never sent"))
        })
    }

    fn unrest(&self) -> String {
        let restless =
            self.clients.iter().position(|client| !client.is_ready() || !client.is_quiet());
        let Some(who) = restless else {
            let shards = self.crew.drivers.iter().flat_map(|driven| driven.driver.shards());
            let waits = shards.map(|shard| shard.waits()).find(|waits| !waits.are_over());
            return format!("{waits:?}");
        };
        let under_way = self.lines.get(&who).map(|line| line.pipe.under_way());
        let is_ready = self.clients[who].is_ready();
        format!("client {who} waits, ready: {is_ready}, under way: {under_way:?}")
    }
}
