//! Commands of operators: one in a turn, behind the messages, so that nobody waits for who asks
//! much.

use broker::{Answer, key_of};

use super::Driver;
use crate::host::Host;
use crate::mailbox::Asked;
use crate::socket::Socket as _;

impl<H: Host> Driver<H> {
    /// Takes a command in; once the broker stops, the asker gets no answer.
    pub(super) fn on_asked(&mut self, asked: Asked<H::Asker>) {
        if self.ends_at_ms.is_none() {
            self.asked.push_back(asked);
        }
    }

    /// Carries out the oldest command.
    pub(super) fn answer_one(&mut self) {
        let Some(Asked { shard, scope, command, answer }) = self.asked.pop_front() else { return };
        // Who has gone away meanwhile gets nothing done.
        if self.host.has_gone(&answer) {
            return;
        }
        // Ticket 0 is nobody's.
        let ticket = self.askers.insert(answer) as u32 + 1;
        let now_ms = self.now_ms;
        self.shard(shard).on_command(ticket, scope, &command, now_ms);
        self.carry_out();
    }

    /// Only the driver has the sockets.
    fn add_tls(&self, answer: &mut Answer) {
        let Answer::Session(Some(view)) = answer else { return };
        let Some(view) = &mut view.connection else { return };
        let own = self.connections.get(key_of(view.connection));
        let own = own.filter(|own| own.number == view.connection);
        view.tls = own.and_then(|own| own.socket.tls());
    }

    /// Tells who asked what a shard has answered.
    pub(super) fn give_answers(&mut self, place: usize) {
        for (ticket, mut answer) in std::mem::take(&mut self.shards[place].effects_mut().answers) {
            self.add_tls(&mut answer);
            if let Some(asker) = self.askers.try_remove(ticket as usize - 1) {
                if !self.host.await_lease() {
                    return self.abandon();
                }
                self.host.answer(asker, answer);
            }
        }
    }
}
