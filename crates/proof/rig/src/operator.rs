//! Commands of an operator.

use broker::Scope;
use broker::command::{Answer, Command, DropsView, ReceiverView, SessionView, Wanted};
use codec::Reason;

use crate::Lab;

/// What the laboratory's commands are numbered with.
pub const TICKET: u32 = 7;

impl Lab {
    /// Gives a command to a shard; the mail stays where it is.
    pub fn order(&mut self, shard: usize, command: &Command) {
        self.shards[shard].on_command(TICKET, Scope::FIRST, command, self.now_ms);
    }

    pub fn answer(&mut self, shard: usize) -> Option<Answer> {
        let mut answers = std::mem::take(&mut self.shards[shard].effects_mut().answers);
        assert!(answers.len() <= 1);
        let (ticket, answer) = answers.pop()?;
        assert_eq!(ticket, TICKET);
        Some(answer)
    }

    pub fn ask(&mut self, shard: usize, command: &Command) -> Answer {
        self.order(shard, command);
        self.answer(shard).expect("an answer at once")
    }

    pub fn sessions(
        &mut self,
        from: u32,
        max: u32,
        wanted: Wanted,
    ) -> (Vec<SessionView>, Option<u32>) {
        match self.ask(0, &Command::Sessions { from, max, wanted }) {
            Answer::Sessions(page) => (page.rows, page.next),
            other => panic!("{other:?}"),
        }
    }

    pub fn session(&mut self, client_id: &str) -> Option<SessionView> {
        (0..self.shards.len()).find_map(|shard| {
            match self.ask(shard, &Command::Session(client_id.into())) {
                Answer::Session(found) => found.map(|view| *view),
                other => panic!("{other:?}"),
            }
        })
    }

    /// Messages that shard 0 knows to be lost to clients.
    pub fn lost(&mut self) -> Vec<(String, u64)> {
        let Answer::Droppers(rows) = self.ask(0, &Command::Droppers { within: None }) else {
            panic!("droppers")
        };
        let total = |row: &DropsView| row.messages.iter().map(|(_, count)| count).sum();
        rows.iter().map(|row| (row.client_id.to_string(), total(row))).collect()
    }

    pub fn receivers(&mut self, shard: usize, topic: &str) -> Vec<ReceiverView> {
        let mut rows = Vec::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let command = Command::Receivers { topic: topic.into(), from, max: 2 };
            let Answer::Receivers(page) = self.ask(shard, &command) else { panic!("receivers") };
            assert!(page.rows.len() <= 2);
            rows.extend(page.rows);
            next = page.next;
        }
        rows
    }

    pub fn done(&mut self, command: &Command) -> bool {
        match self.ask(0, command) {
            Answer::Done(any) => any,
            other => panic!("{other:?}"),
        }
    }

    pub fn published(&mut self, shard: usize) -> Option<Reason> {
        match self.answer(shard)? {
            Answer::Published(reason) => Some(reason),
            other => panic!("{other:?}"),
        }
    }
}
