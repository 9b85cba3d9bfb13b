//! Faults, and the end of those that last for a while.

use std::ops::Range;

use toml::Spanned;

use super::super::format::{self, Whom};
use super::super::units::Time;
use super::{DEFAULT_BROKER, Lowered, Lowering};
use crate::model::{
    BrokerId, Command, Delay, Directions, Fault, GroupId, Party, Spread, Step, Which,
};

/// A fault, once it is known whom it befalls.
type Against = fn(Party) -> Fault;

impl Lowering<'_> {
    /// The fault; with `for`, also the wait and what ends it.
    pub(super) fn fault(&self, fault: &format::Fault) -> Lowered<Vec<Step>> {
        let (who, begin, end): (_, Against, Option<Against>) = match fault {
            format::Fault::Cut(cut) => return self.cut(cut),
            format::Fault::Kill(who) => {
                (who, |who| Fault::Kill { who }, Some(|who| Fault::Restart { who }))
            }
            format::Fault::Stop(who) => {
                (who, |who| Fault::Stop { who }, Some(|who| Fault::Restart { who }))
            }
            format::Fault::Pause(who) => {
                (who, |who| Fault::Pause { who }, Some(|who| Fault::Resume { who }))
            }
            format::Fault::Resume(who) => (who, |who| Fault::Resume { who }, None),
            format::Fault::Restart(who) => (who, |who| Fault::Restart { who }, None),
            format::Fault::Mend(who) => (who, |who| Fault::Mend { who }, None),
        };
        let (party, lasting) = self.whom(who)?;
        if let (None, Some(_)) = (end, lasting) {
            return Err(self.error(
                who.span(),
                "`for` is only possible with `kill`, `stop`, `pause` and `cut`",
            ));
        }
        Ok(lasting_for(party, begin(party), lasting, end))
    }

    fn whom(&self, who: &Spanned<Whom>) -> Lowered<(Party, Option<Time>)> {
        match who.get_ref() {
            Whom::Broker(name) if self.brokers.is_empty() && name == DEFAULT_BROKER => {
                Ok((Party::Broker(BrokerId(0)), None))
            }
            Whom::Broker(name) => {
                let id = self.find_at(&self.brokers, name, who.span(), "broker")?;
                Ok((Party::Broker(BrokerId(id)), None))
            }
            Whom::Member(member) => {
                let party = self.member(member.node, member.engine, who.span())?;
                Ok((party, member.lasting))
            }
        }
    }

    fn member(
        &self,
        node: Option<Which>,
        engine: Option<u32>,
        span: Range<usize>,
    ) -> Lowered<Party> {
        match (node, engine) {
            (Some(node), None) => Ok(Party::Node(node)),
            (None, Some(engine)) => Ok(Party::Engine(engine)),
            _ => Err(self.error(span, "needs `node` (a number, \"active\", \"standby\" or \"last\") or `engine` (a number)")),
        }
    }

    fn cut(&self, cut: &Spanned<format::Cut>) -> Lowered<Vec<Step>> {
        let given = cut.get_ref();
        if let (Some(clients), Some(share)) = (&given.clients, &given.share) {
            if !(0.0..=1.0).contains(share.get_ref()) {
                return Err(self.error(share.span(), "`share` must be from 0 to 1"));
            }
            let is_only = given.node.is_none()
                && given.engine.is_none()
                && given.directions.is_none()
                && given.lasting.is_none();
            if !is_only {
                let message =
                    "`clients` and `share` exclude `node`, `engine`, `directions` and `for`";
                return Err(self.error(cut.span(), message));
            }
            let group = GroupId(self.find(&self.groups, clients, "client group")?);
            let fault = Fault::Cut { group, share: *share.get_ref() };
            return Ok(vec![Command::Fault(fault).into()]);
        }
        if given.clients.is_some() || given.share.is_some() {
            return Err(self.error(cut.span(), "`cut` needs `clients` and `share` together"));
        }
        let who = self.member(given.node, given.engine, cut.span())?;
        let directions: Directions = given.directions.unwrap_or_default();
        let fault = Fault::CutLinks { who, directions };
        Ok(lasting_for(who, fault, given.lasting, Some(|who| Fault::Mend { who })))
    }
}

/// A node that was found by its role is found again as the last.
fn lasting_for(
    party: Party,
    fault: Fault,
    lasting: Option<Time>,
    end: Option<fn(Party) -> Fault>,
) -> Vec<Step> {
    let mut steps = vec![Command::Fault(fault).into()];
    if let (Some(Time(duration_us)), Some(end)) = (lasting, end) {
        let same = match party {
            Party::Node(Which::Active | Which::Standby) => Party::Node(Which::Last),
            party => party,
        };
        steps.push(Command::Delay(Delay { duration_us, spread: Spread::None }).into());
        steps.push(Command::Fault(end(same)).into());
    }
    steps
}
