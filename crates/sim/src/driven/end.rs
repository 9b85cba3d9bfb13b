//! What is looked at when a world has come to rest.

use std::time::Duration;

use codec::{QoS, Version};
use driver::testing::PipeEnd;

use super::DrivenWorld;
use crate::client::ModelClient;

/// After so long a farewell is given up, and its connection closed.
const PARTING_MS: u64 = 10_000;

/// Timers of the broker run a little late.
const SLACK_MS: u64 = 2500;

impl DrivenWorld {
    /// Of those who promised it some are silent now: they are cut when one and a half times as much
    /// has passed (MQTT-3.1.2-22), and the others are not.
    pub(super) fn judge_keep_alive(&mut self) -> Result<(), String> {
        let promised: Vec<usize> =
            (0..self.clients.len()).filter(|who| self.clients[*who].keep_alive_secs > 0).collect();
        let silent = promised.into_iter().filter(|_| self.random.chance(50)).collect();
        self.silent = silent;
        let secs = self.silent.iter().map(|who| self.clients[*who].keep_alive_secs);
        let longest = secs.max().unwrap_or_default();
        let ends_ms = self.now_ms() + u64::from(longest) * 1500 + SLACK_MS;
        let before = self.crew.toll.keep_alive_cuts;
        while self.now_ms() < ends_ms {
            self.keep_alive_for(1000)?;
        }
        let cuts = self.crew.toll.keep_alive_cuts - before;
        let silent = std::mem::take(&mut self.silent);
        if cuts != silent.len() as u64 {
            return Err(format!("{} are silent, {cuts} are cut", silent.len()));
        }
        self.come_to_rest()
    }

    fn keep_alive_for(&mut self, ms: u64) -> Result<(), String> {
        self.pass_time(1)?;
        self.keep_alive(ms);
        self.clock.pass(Duration::from_millis(ms));
        self.let_move()
    }

    /// A newcomer asks for all retained messages.
    pub(super) fn judge_retained(&mut self) -> Result<(), String> {
        if self.has_rules {
            return Ok(());
        }
        let number = self.clients.len() as u32;
        let mut fresh = ModelClient::new(number, Version::V5, 0, u16::MAX);
        fresh.want("r/#", QoS::AtLeastOnce);
        self.clients.push(fresh);
        let dropped = self.dropped();
        self.come_to_rest()?;
        self.oracle.judge_retained(number, self.dropped() - dropped)
    }

    /// All go, and nothing is left of their connections.
    pub(super) fn judge_end(&mut self) -> Result<(), String> {
        let connected = self.clients.len() as u64;
        let counted = self.crew.shared.total(|metrics| &metrics.connections);
        if counted != connected {
            return Err(format!("{counted} connections counted, {connected} there are"));
        }
        for who in 0..self.clients.len() {
            if self.random.chance(50) {
                self.clients[who].disconnect();
                self.send_all(who);
            } else {
                self.break_connection(who);
            }
        }
        self.ghosts.iter().for_each(PipeEnd::cut);
        for _ in 0..PARTING_MS / 1000 {
            self.keep_alive_for(1000)?;
        }
        let left: usize = self.crew.drivers.iter().map(|d| d.driver.connection_count()).sum();
        match left {
            0 => Ok(()),
            left => Err(format!("{left} connections are left of clients that have gone")),
        }
    }
}
