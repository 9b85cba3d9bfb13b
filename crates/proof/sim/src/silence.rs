//! What worlds have whose clients do what those of others do not: speak MQTT 3.1, use aliases,
//! promise not to be silent.

use broker::Limits;
use codec::Version;
use driver::testing::PipeEnd;

use crate::client::ModelClient;
use crate::dice::pick;
use crate::random::Random;
use crate::world::{Options, World};

/// After so long a farewell is given up, and its connection closed.
const PARTING_MS: u64 = 10_000;

/// Timers of the broker run a little late.
const SLACK_MS: u64 = 2500;

/// Time passes in pieces, so that nobody is silent who does not want to be.
const PIECE_MS: u64 = 1000;

/// Returns the bytes of the largest messages, which are `padding_max` in other worlds.
pub(crate) fn dress(
    options: Options,
    (limits, clients): (&mut Limits, &mut [ModelClient]),
    padding_max: usize,
    random: &mut Random,
) -> usize {
    if !options.driven {
        return padding_max;
    }
    limits.alias_in_max = pick(&[0, 1, 3, 30], random);
    limits.alias_out_max = pick(&[0, 1, 3, 30], random);
    clients.iter_mut().for_each(|client| dress_one(client, random));
    padding_max.max(pick(&[0, 300, 6000], random))
}

fn dress_one(client: &mut ModelClient, random: &mut Random) {
    if client.version == Version::V311 && !client.is_persistent() && random.chance(40) {
        client.version = Version::V31;
    }
    if client.version == Version::V5 {
        client.alias_max = pick(&[0, 0, 1, 3, 30], random);
    }
    client.keep_alive_secs = pick(&[0, 5, 30], random);
}

impl World {
    /// May the client be taken for silent? It has said nothing for one and a half times as long as
    /// it promised (MQTT-3.1.2-22), or the broker has not got what it said.
    pub(crate) fn has_been_silent(&self, who: usize) -> bool {
        let client = &self.clients[who];
        let Some(line) = self.lines.get(&who) else { return true };
        let limit_ms = u64::from(client.keep_alive_secs) * 1500;
        // Who reads nothing is not read.
        let is_read = !client.is_deaf && line.pipe.under_way() == (0, 0) && client.is_ready();
        !is_read || self.silent.contains(&who) || self.now_ms >= line.sent_ms + limit_ms
    }

    /// Of those who promised it some are silent now: they are cut when one and a half times as much
    /// has passed (MQTT-3.1.2-22), and the others are not.
    pub(crate) fn judge_keep_alive(&mut self) -> Result<(), String> {
        let promised: Vec<usize> =
            (0..self.clients.len()).filter(|who| self.clients[*who].keep_alive_secs > 0).collect();
        self.silent = promised.into_iter().filter(|_| self.random.chance(50)).collect();
        let secs = self.silent.iter().map(|who| self.clients[*who].keep_alive_secs);
        let longest = secs.max().unwrap_or_default();
        let ends_ms = self.now_ms + u64::from(longest) * 1500 + SLACK_MS;
        while self.now_ms < ends_ms {
            self.let_time_pass()?;
        }
        // Others are not cut for it, which is judged when it happens.
        let silent = std::mem::take(&mut self.silent);
        let is_open = |who: &usize| {
            let line = self.lines.get(who);
            let is_admitted =
                |arrival: u32| self.nodes().any(|node| node.admitted.contains_key(&arrival));
            line.is_some_and(|line| is_admitted(line.arrival))
        };
        match silent.iter().find(|who| is_open(who)) {
            Some(who) => Err(format!("client {who} is silent, and not cut")),
            None => self.come_to_rest(),
        }
    }

    fn let_time_pass(&mut self) -> Result<(), String> {
        self.pass_ms(PIECE_MS)?;
        self.let_all_move()
    }

    /// All go, and nothing is left of their connections.
    pub(crate) fn judge_partings(&mut self) -> Result<(), String> {
        for who in 0..self.clients.len() {
            if self.random.chance(50) {
                self.clients[who].disconnect();
                self.send_all(who);
            } else {
                self.break_connection(who);
            }
        }
        self.nodes().flat_map(|node| &node.broken).for_each(PipeEnd::cut);
        for _ in 0..PARTING_MS / PIECE_MS {
            self.let_time_pass()?;
        }
        let drivers = self.nodes().flat_map(|node| &node.drivers);
        let left: usize = drivers.map(|driven| driven.driver.connection_count()).sum();
        match left {
            0 => Ok(()),
            left => Err(format!("{left} connections are left of clients that have gone")),
        }
    }
}
