//! Durable sessions: a shard's log, what is written into it, and what is rebuilt from it.

mod replay;

use std::sync::Arc;

use storage::{Command, Completion, Recovered, Stats, Status};

pub use replay::{Replay, Restored};

use crate::journal::Malformed;
use crate::{Limits, Shard};

impl Shard {
    /// Joins the shard's log and rebuilds the state that it holds. `limits` hold for restored
    /// sessions until their clients connect again.
    ///
    /// Call [`settle`] when all shards have done so, and carry out disk commands until
    /// [`Shard::log_is_ready`], before the first connection.
    ///
    /// # Errors
    ///
    /// A record with a right checksum cannot be read: another program version wrote it.
    pub fn open_log(
        &mut self,
        _recovered: Recovered,
        _settings: storage::Settings,
        _replay: Replay,
        _limits: &Arc<Limits>,
        _now_ms: u64,
    ) -> Result<Restored, Malformed> {
        Ok(Restored::default())
    }

    /// Moves what the disk has to do to the end of `out`. Call it once per turn, after everything
    /// else, so that all that a turn appends shares a write.
    pub fn take_disk_commands(&mut self, _out: &mut Vec<Command>, _now_ms: u64) {}

    /// The disk has carried out a command.
    pub fn on_disk(&mut self, _completion: Completion, _now_ms: u64) {}

    /// The state of the log; none if the shard keeps everything in memory.
    pub fn log_status(&self) -> Option<Status> {
        None
    }

    /// Figures of the log, for operators.
    pub fn log_stats(&self) -> Option<Stats> {
        None
    }

    /// What recovery found is durable, so connections may come. True without a log.
    pub fn log_is_ready(&self) -> bool {
        true
    }

    /// Ends the log in order: complete when [`Shard::log_status`] is `Closed`, or `Poisoned`.
    pub fn close_log(&mut self) {}

    /// Keeps the log's files as they are, for a backup, until as many [`Shard::unhold_log`].
    /// Returns the log's files: segment number and bytes of it that belong to the backup.
    pub fn hold_log(&mut self) -> Vec<(u32, u64)> {
        Vec::new()
    }

    /// Ends a [`Shard::hold_log`].
    pub fn unhold_log(&mut self) {}
}

/// Carries mail between the shards of a process until none is left: after [`Shard::open_log`], so
/// that each knows the shared groups of all.
pub fn settle(shards: &mut [Shard], now_ms: u64) {
    loop {
        let mut mails = Vec::new();
        for shard in shards.iter_mut() {
            for (to, mail) in shard.effects.mail.iter_mut().enumerate() {
                mails.extend(mail.drain(..).map(|mail| (to, mail)));
            }
        }
        if mails.is_empty() {
            return;
        }
        for (to, mail) in mails {
            if let Some(shard) = shards.get_mut(to) {
                shard.on_mail(mail, now_ms);
            }
        }
    }
}
