//! Connections on the way into their namespaces. Those whose namespace has to be made first are
//! parked meanwhile: no acceptor waits for a disk.

use broker::admission::Credentials;
use net::Stream;

use super::Acceptor;
use super::arrival::{Stage, refusal};
use super::mailbox::AcceptorItem;
use identity::namespaces::{Misplaced, NOT_MADE, Placement};

/// A connection with what it has sent.
pub(super) type Caller = (Stream, Box<Credentials>, Vec<u8>);

impl Acceptor {
    /// A client that has proved who it is goes into its namespace. None: it is refused, or waits.
    pub(super) fn place(
        &mut self,
        key: usize,
        stream: Stream,
        mut credentials: Box<Credentials>,
        rest: Vec<u8>,
    ) -> Option<Caller> {
        let arrival = self.arrivals.get(key)?;
        let (host, request) = (arrival.host.as_deref(), &mut credentials.request);
        let placed = arrival.listener.belonging.place(&self.context.namespaces, request, host);
        match placed {
            Ok(Placement::Placed) => return Some((stream, credentials, rest)),
            Ok(Placement::NamespaceMissing(name)) => match self.ask_for(key, &name) {
                Ok(()) => self.set(key, Stage::Checking { stream, credentials, rest }),
                Err(misplaced) => self.refuse_misplaced(key, stream, &credentials, misplaced),
            },
            Err(misplaced) => self.refuse_misplaced(key, stream, &credentials, misplaced),
        }
        None
    }

    fn ask_for(&self, key: usize, name: &str) -> Result<(), Misplaced> {
        let Some(arrival) = self.arrivals.get(key) else { return Err(NOT_MADE) };
        let (mailbox, generation) = (self.mailbox.clone(), arrival.generation);
        let answer = move |is_made| mailbox.put(AcceptorItem::Named { key, generation, is_made });
        let origin = *arrival.charge.sharer();
        let maker = &self.context.name_maker;
        Ok(maker.ask(name, origin, self.now_ms, Box::new(answer))?)
    }

    /// Its namespace has been made, or cannot be.
    pub(super) fn on_named(&mut self, key: usize, generation: u64, is_made: bool) {
        let Some((stream, credentials, rest)) = self.unpark(key, generation) else { return };
        match is_made {
            // It is looked up again: it may have been closed meanwhile.
            true => self.hand_over(key, stream, credentials, rest),
            false => self.refuse_misplaced(key, stream, &credentials, NOT_MADE),
        }
    }

    /// Takes a connection that waits for an answer. None: it has gone, and another one may have its
    /// key.
    pub(super) fn unpark(&mut self, key: usize, generation: u64) -> Option<Caller> {
        let arrival = self.arrivals.get_mut(key)?;
        if arrival.generation != generation {
            return None;
        }
        match std::mem::replace(&mut arrival.stage, Stage::Moving) {
            Stage::Checking { stream, credentials, rest } => Some((stream, credentials, rest)),
            other => {
                arrival.stage = other;
                None
            }
        }
    }

    fn refuse_misplaced(
        &mut self,
        key: usize,
        stream: Stream,
        credentials: &Credentials,
        Misplaced { reason, detail }: Misplaced,
    ) {
        let refusal = refusal(credentials, reason, "", detail);
        self.refuse_connect(key, stream, credentials, &refusal);
    }
}
