//! What operators do with a rule: pause, resume and seek.

use std::io;
use std::sync::Arc;

use broker::streams::ConsumerNumber;
use config::Namespace;
use routing::definitions::Kind;
use streams::Seek;

use super::apply::ApplyError;
use super::owner::Owner;
use super::start::{InForce, suspend_rules};
use super::tenants::without_stale;

/// What is to be done with a rule.
#[derive(Clone, Debug)]
pub(crate) enum RuleOrder {
    /// It sends nothing more, also after a restart, until it is resumed.
    Pause,
    Resume,
    /// It begins another run there.
    Seek(Seek),
}

/// Why it was not done. Nothing has changed.
#[derive(Debug)]
pub(crate) enum OperateError {
    UnknownRule,
    /// The file of rules has disabled it.
    Disabled,
    /// The data directory cannot be written.
    Unwritten(io::Error),
    /// The broker is stopping.
    Stopping,
}

/// Takes what came of an order.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), OperateError>) + Send>;

/// Seeks whose answers wait until the position is committed. Policy: others are answered at once.
const SEEKS_MAX: usize = 64;

impl Owner {
    /// Answers when it is done: a seek when the rule reads from there. `namespace`: that of the
    /// caller, if it is not an operator.
    pub(crate) fn operate(
        &mut self,
        rule: &str,
        order: &RuleOrder,
        namespace: Option<&str>,
        answer: Answer,
    ) {
        if namespace.is_some_and(|namespace| !self.is_of(Kind::Rule, rule, namespace)) {
            return answer(Err(OperateError::UnknownRule));
        }
        match self.carry_out_order(rule, order) {
            Ok(number) if matches!(order, RuleOrder::Seek(_)) && self.seeks.len() < SEEKS_MAX => {
                self.seeks.push((number, answer));
            }
            Ok(_) => {
                self.look(self.clock.now_ms());
                answer(Ok(()));
            }
            Err(error) => answer(Err(error)),
        }
    }

    /// A rule reads from where it was to go on.
    pub(super) fn answer_seeks(&mut self, number: ConsumerNumber) {
        let (done, others) = std::mem::take(&mut self.seeks)
            .into_iter()
            .partition::<Vec<_>, _>(|(own, _)| *own == number);
        self.seeks = others;
        if !done.is_empty() {
            self.look(self.clock.now_ms());
        }
        done.into_iter().for_each(|(_, answer)| answer(Ok(())));
    }

    /// Rules of suspended namespaces send nothing from now on, and those of others do again.
    pub(crate) fn follow_namespaces(&mut self) {
        let now_ms = self.clock.now_ms();
        let InForce { loaded, numbers, .. } = &self.in_force;
        suspend_rules(&mut self.hub, loaded, numbers, &self.ground, now_ms);
        self.look(now_ms);
    }

    /// What users of namespaces may define is so from now on. Targets that are not permitted any
    /// more get no connection.
    pub(super) fn permit(&mut self, namespaces: &[Namespace]) -> Result<(), ApplyError> {
        let file = (*self.in_force.file).clone().permitting(namespaces);
        let own = without_stale(self.in_force.own.clone(), &self.ground.namespaces);
        if file.permits != self.in_force.file.permits || own != self.in_force.own {
            self.apply(Arc::new(file), own)?;
        }
        self.follow_namespaces();
        Ok(())
    }

    /// Rules of a namespace that have messages to send, each with their number.
    pub(super) fn pending_in(&mut self, namespace: &str) -> Vec<String> {
        let now_ms = self.clock.now_ms();
        let InForce { loaded, numbers, .. } = &self.in_force;
        let mut pending = Vec::new();
        for spec in &loaded.definitions.rules {
            let stream = loaded.definitions.stream(&spec.stream);
            if stream.is_none_or(|stream| stream.namespace != namespace) {
                continue;
            }
            let number = numbers.consumer(spec.name()).map(ConsumerNumber);
            let view = number.and_then(|number| self.hub.view(number, now_ms));
            let count = view.map_or(0, |view| view.sum.lag());
            if count > 0 {
                pending.push(format!("{}: {count}", spec.name()));
            }
        }
        pending
    }

    fn carry_out_order(
        &mut self,
        rule: &str,
        order: &RuleOrder,
    ) -> Result<ConsumerNumber, OperateError> {
        if self.ends_at.is_some() {
            return Err(OperateError::Stopping);
        }
        let number = self.in_force.numbers.consumer(rule).map(ConsumerNumber);
        let number = number.ok_or(OperateError::UnknownRule)?;
        let now_ms = self.clock.now_ms();
        match order {
            RuleOrder::Pause => {
                self.note_paused(number, true)?;
                self.hub.pause(number, now_ms);
            }
            RuleOrder::Resume => {
                let mut rules = self.in_force.loaded.definitions.rules.iter();
                if rules.any(|spec| spec.name() == rule && !spec.rule.is_enabled()) {
                    return Err(OperateError::Disabled);
                }
                self.note_paused(number, false)?;
                self.hub.resume(number, now_ms);
            }
            RuleOrder::Seek(to) => self.hub.seek(number, to, now_ms),
        }
        Ok(number)
    }

    /// A pause outlives a restart.
    fn note_paused(&mut self, number: ConsumerNumber, is_paused: bool) -> Result<(), OperateError> {
        if self.in_force.numbers.is_paused(number.0) == is_paused {
            return Ok(());
        }
        let mut numbers = self.in_force.numbers.clone();
        numbers.set_paused(number.0, is_paused);
        let written = numbers.write(&self.ground.stamps, &self.ground.directory);
        written.map_err(OperateError::Unwritten)?;
        self.in_force.numbers = numbers;
        Ok(())
    }
}
