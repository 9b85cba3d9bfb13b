//! What planted bugs do in the engine.

use cluster::{Answer, Body, Content, Request, Sequence, decode};

use super::engine::Asker;

/// Where the number stands in a message.
const NUMBER_AT: usize = 38;

/// A node that has become active without a claim. It takes the claim for stored: of what it asks
/// and is answered, sequences are greater by one than in the stream.
#[derive(Debug, Default)]
pub(crate) struct Unclaimed {
    by: Option<(Asker, Sequence, Body)>,
}

impl Unclaimed {
    /// True: the request is a claim that is not to be stored. The first claim of the stream is:
    /// there is no earlier writer.
    pub(crate) fn swallows(&mut self, asker: Asker, request: &Request, last: Sequence) -> bool {
        let Request::Append { after, body } = request else { return false };
        let is_claim = decode(body).is_ok_and(|it| matches!(it.content, Content::Claim { .. }));
        let is_next = *after == last && last > 0;
        if !is_claim || !is_next || self.is_of(asker) {
            return false;
        }
        self.by = Some((asker, last + 1, body.clone()));
        true
    }

    pub(crate) fn is_of(&self, asker: Asker) -> bool {
        self.by.as_ref().is_some_and(|(by, ..)| *by == asker)
    }

    /// What this node reads in the place of its claim.
    pub(crate) fn claim(&self, asker: Asker, from: Sequence) -> Option<Body> {
        let (_, at, body) = self.by.as_ref().filter(|_| self.is_of(asker))?;
        (*at == from).then(|| body.clone())
    }

    /// The request as the stream takes it.
    pub(crate) fn back(request: &Request) -> Request {
        match request {
            Request::Append { after, body } => {
                Request::Append { after: after.saturating_sub(1), body: body.clone() }
            }
            Request::Message { sequence } => Request::Message { sequence: sequence - 1 },
            Request::Purge { before } => Request::Purge { before: before - 1 },
            Request::Ends => Request::Ends,
        }
    }

    /// The answer as the node takes it.
    pub(crate) fn forth(answer: Answer) -> Answer {
        match answer {
            Answer::Appended(sequence) => Answer::Appended(sequence + 1),
            Answer::Ends { first, last } => Answer::Ends { first, last: last + 1 },
            other => other,
        }
    }
}

/// The same content as the next message of its writer (`crates/core/cluster/src/wire.rs`).
pub(crate) fn renumbered(body: &Body) -> Body {
    let mut bytes = body[..body.len() - size_of::<u32>()].to_vec();
    let mut number = [0; size_of::<u64>()];
    number.copy_from_slice(&bytes[NUMBER_AT..NUMBER_AT + size_of::<u64>()]);
    let next = u64::from_le_bytes(number) + 1;
    bytes[NUMBER_AT..NUMBER_AT + size_of::<u64>()].copy_from_slice(&next.to_le_bytes());
    let checksum = storage::checksum(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.into()
}
