//! What the shards of this cell have asked another cell, and it has not answered.

use std::collections::{BTreeMap, HashMap};

use codec::{QoS, Reason};
use foldhash::fast::FixedState;

use crate::{Confirm, Mail, ShardId};

/// All of them, by their numbers. Bounded by the credit windows of the shards; what nobody waits
/// for by [`UNAWAITED_MAX`].
#[derive(Debug, Default)]
pub(super) struct Requests {
    by_number: BTreeMap<u64, Request>,
    unawaited: usize,
    /// Those for which a later one is asked.
    superseded: usize,
    last: u64,
}

/// Wills and messages of the broker itself that wait for a cell without an owner. Policy: further
/// ones are dropped and counted.
pub(super) const UNAWAITED_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) from: ShardId,
    pub(super) since_ms: u64,
    /// An owner of the other cell may have had it.
    pub(super) was_sent: bool,
    /// A message to be retained, and a later one of the same topic that is asked instead. Should
    /// that be refused, this one is asked.
    behind: Option<u64>,
    /// What the shard has mailed.
    pub(super) mail: Mail,
}

impl Requests {
    /// None: there are too many for whose answer nobody waits.
    pub(super) fn push(&mut self, from: ShardId, mail: Mail, now_ms: u64) -> Option<u64> {
        let request = Request { from, since_ms: now_ms, was_sent: false, behind: None, mail };
        if request.is_unawaited() {
            if self.unawaited >= UNAWAITED_MAX {
                return None;
            }
            self.unawaited += 1;
        }
        self.last += 1;
        self.by_number.insert(self.last, request);
        Some(self.last)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Request> {
        self.by_number.get_mut(&number)
    }

    pub(super) fn take(&mut self, number: u64) -> Option<Request> {
        let request = self.by_number.remove(&number)?;
        self.unawaited -= usize::from(request.is_unawaited());
        self.superseded -= usize::from(request.is_superseded());
        Some(request)
    }

    /// Of messages to be retained on one topic only the latest is asked again. An earlier one
    /// without a serial would replace one that the journal knows by its serial and does not store
    /// again.
    pub(super) fn supersede(&mut self) {
        let mut latest: HashMap<(u16, Box<[u8]>), u64, FixedState> = HashMap::default();
        self.superseded = 0;
        for (number, request) in self.by_number.iter_mut().rev() {
            if let Mail::Retain { message, confirm, .. } = &request.mail {
                let topic = (message.scope(), message.topic_bytes().into());
                let later = *latest.entry(topic).or_insert(*number);
                // A serial has to be noted there.
                let is_known = confirm.is_some_and(|confirm| confirm.serial != 0);
                request.behind = Some(later).filter(|later| later != number && !is_known);
                self.superseded += usize::from(request.is_superseded());
            }
        }
    }

    /// Those for which this one is asked.
    pub(super) fn behind(&self, number: u64) -> Vec<u64> {
        if self.superseded == 0 {
            return Vec::new();
        }
        let is_behind = |(_, request): &(&u64, &Request)| request.behind == Some(number);
        self.by_number.iter().filter(is_behind).map(|(number, _)| *number).collect()
    }

    /// It is asked itself from now on.
    pub(super) fn stand_alone(&mut self, number: u64) -> Option<&Request> {
        let request = self.by_number.get_mut(&number)?;
        self.superseded -= usize::from(request.behind.take().is_some());
        Some(request)
    }

    /// In the order in which they were asked.
    pub(super) fn in_order(&mut self) -> impl Iterator<Item = (u64, &mut Request)> {
        self.by_number.iter_mut().map(|(number, request)| (*number, request))
    }

    /// Takes out those that are so, in their order. Somebody waits for their answers.
    pub(super) fn take_if(&mut self, is_so: impl Fn(&Request) -> bool) -> Vec<Request> {
        let taken = self.by_number.extract_if(.., |_, request| is_so(request));
        let taken: Vec<Request> = taken.map(|(_, request)| request).collect();
        self.superseded -= taken.iter().filter(|it| it.is_superseded()).count();
        taken
    }

    /// Takes out requests for grants with no message of their shard before them, but for those that
    /// have waited since `since_ms` or longer.
    pub(super) fn take_free_grants(&mut self, since_ms: u64) -> Vec<Request> {
        let mut busy = 0_u64;
        let is_free = |_: &u64, request: &mut Request| {
            let (shard, is_message) = (1 << request.from, request.mail.message().is_some());
            busy |= if is_message && request.since_ms > since_ms { shard } else { 0 };
            matches!(request.mail, Mail::AskGrant { .. }) && busy & shard == 0
        };
        self.by_number.extract_if(.., is_free).map(|(_, request)| request).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }
}

impl Request {
    /// Is a later one asked for it?
    pub(super) const fn is_superseded(&self) -> bool {
        self.behind.is_some()
    }

    const fn confirm(&self) -> Option<&Confirm> {
        match &self.mail {
            Mail::Publish { confirm, .. } | Mail::Retain { confirm, .. } => confirm.as_ref(),
            _ => None,
        }
    }

    /// Could a message be delivered twice that must not be, if another owner had it as well? A will
    /// may, for which nobody waits.
    pub(super) fn may_not_repeat(&self) -> bool {
        let is_exact = self.mail.message().is_some_and(|it| it.qos() == QoS::ExactlyOnce);
        self.was_sent && is_exact && self.confirm().is_some_and(|it| it.serial == 0)
    }

    /// May its publisher be refused? What was taken on may not, and a will has nobody to refuse.
    pub(super) fn may_be_refused(&self) -> bool {
        self.confirm().is_some_and(|confirm| confirm.serial == 0)
    }

    /// Nobody waits for the answer.
    fn is_unawaited(&self) -> bool {
        self.mail.message().is_some() && self.confirm().is_none()
    }

    /// The answer for the shard that has asked.
    pub(super) fn answered(self, reason: Reason) -> Option<(ShardId, Mail)> {
        let (Mail::Publish { message, confirm, .. } | Mail::Retain { message, confirm, .. }) =
            self.mail
        else {
            return None;
        };
        let refused = reason.is_error().then_some(message);
        Some((self.from, Mail::Confirmed { confirm: confirm?, reason, refused }))
    }
}
