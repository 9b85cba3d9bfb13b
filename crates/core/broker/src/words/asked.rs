//! Who is asked to accept a publish, while it is on its way to them.

use session::{Awaited, Respondent};

use crate::{Confirm, ShardId};

/// A publish whose publisher waits for answers.
#[derive(Debug)]
pub(crate) struct Asked {
    confirm: Confirm,
    awaited: Awaited,
    /// How many groups were asked.
    groups: u32,
}

impl Asked {
    pub(crate) fn new(confirm: Confirm) -> Self {
        Self { confirm, awaited: Awaited::default(), groups: 0 }
    }

    /// What is asked, of nobody yet.
    pub(crate) const fn confirm(&self) -> Confirm {
        self.confirm
    }

    /// What it is to answer.
    pub(crate) fn ask(&mut self, respondent: Respondent) -> Confirm {
        self.awaited.insert(respondent);
        Confirm { respondent, ..self.confirm }
    }

    pub(crate) fn ask_shard(&mut self, shard: ShardId) -> Confirm {
        self.ask(Respondent::shard(shard))
    }

    /// The home of one more group.
    pub(crate) fn ask_group(&mut self) -> Confirm {
        self.groups += 1;
        self.ask(Respondent::group(self.groups - 1))
    }

    /// It was asked in vain: it does not answer.
    pub(crate) fn take_back(&mut self, respondent: Respondent) {
        self.awaited.remove(respondent);
    }

    /// The publish was accepted before: what is asked from now on cannot refuse it any more.
    pub(crate) const fn ask_again(&mut self) {
        self.confirm.is_again = true;
    }

    /// Those that have yet to answer, if there are any.
    #[inline]
    pub(crate) fn take_awaited(&mut self) -> Option<Awaited> {
        (!self.awaited.is_empty()).then(|| std::mem::take(&mut self.awaited))
    }
}
