//! An authorization service in some worlds. It allows everything, when it likes: late, or after a
//! client has gone. It says the contrary of what it has said already, and of what was asked before
//! it was told to forget: those answers are nobody's, so all that the oracle expects holds.

use broker::{AccessQuestion, Command, ServiceAnswer, ServiceSettings, Settings, ShardId};
use policy::Access;

use crate::client::ModelClient;
use crate::hostile::Mob;
use crate::random::Random;
use crate::world::{Options, World};

/// What the service was asked, and what it may say again.
#[derive(Debug)]
pub(crate) struct Service {
    is_on: bool,
    random: Random,
    open: Vec<Open>,
    answered: Vec<(ShardId, AccessQuestion)>,
    /// Answers so far.
    pub(crate) answers: u64,
}

/// A question that has no answer yet.
#[derive(Debug)]
struct Open {
    shard: ShardId,
    question: AccessQuestion,
    /// The shard has been made to forget what was asked.
    is_void: bool,
}

/// Of a hundred steps of the world, those in which the service answers.
const ANSWERS_PERCENT: usize = 30;

/// Questions that it may answer once more.
const ANSWERED_MAX: usize = 20;

impl Service {
    pub(crate) fn new(is_on: bool, seed: u64) -> Self {
        let random = Random::new(seed ^ (1 << 57));
        Self { is_on, random, open: Vec::new(), answered: Vec::new(), answers: 0 }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn hear(&mut self, questions: Vec<(ShardId, AccessQuestion)>) {
        let open = |(shard, question)| Open { shard, question, is_void: false };
        self.open.extend(questions.into_iter().map(open));
    }

    pub(crate) const fn has_questions(&self) -> bool {
        !self.open.is_empty()
    }

    /// The process has ended, and all that it waits for.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
        self.answered.clear();
    }
}

impl World {
    /// The service answers one question, or what it has answered before, or forgets what it said.
    pub(crate) fn serve(&mut self) -> Result<(), String> {
        if !self.service.is_on || !self.service.random.chance(ANSWERS_PERCENT) {
            return Ok(());
        }
        match self.service.random.below(10) {
            0 => self.answer_again(),
            1 => self.forget_verdicts(),
            _ => self.answer_one(),
        }
    }

    /// The oldest or any other.
    pub(crate) fn answer_one(&mut self) -> Result<(), String> {
        if self.service.open.is_empty() {
            return Ok(());
        }
        let place = self.service.random.below(self.service.open.len());
        let Open { shard, question, is_void } = self.service.open.remove(place);
        if is_void {
            return self.tell(shard, &question, ServiceAnswer::Deny);
        }
        self.service.answers += 1;
        self.note(|| format!("the service allows {} {}", question.client_id, question.topic));
        self.service.answered.push((shard, question.clone()));
        if self.service.answered.len() > ANSWERED_MAX {
            self.service.answered.remove(0);
        }
        self.tell(shard, &question, ServiceAnswer::Allow)
    }

    /// A second answer, which is a denial and nobody's.
    fn answer_again(&mut self) -> Result<(), String> {
        if self.service.answered.is_empty() {
            return Ok(());
        }
        let place = self.service.random.below(self.service.answered.len());
        let (shard, question) = self.service.answered[place].clone();
        let answer = [ServiceAnswer::Deny, ServiceAnswer::Failed][self.service.random.below(2)];
        self.tell(shard, &question, answer)
    }

    fn tell(
        &mut self,
        shard: ShardId,
        question: &AccessQuestion,
        answer: ServiceAnswer,
    ) -> Result<(), String> {
        let (connection, now_ms) = ((question.slot, question.connection), self.now_ms);
        self.node.shard(shard).on_verdict(connection, question.number, answer, now_ms);
        self.turn_for(shard)
    }

    /// What was answered is void, and so is what is asked now.
    fn forget_verdicts(&mut self) -> Result<(), String> {
        let shard = self.service.random.below(usize::from(self.node.shard_count())) as ShardId;
        let open = self.service.open.iter_mut().filter(|open| open.shard == shard);
        open.for_each(|open| open.is_void = true);
        let command = Command::ForgetVerdicts { from: 0, wanted: Default::default() };
        self.command(shard, command).map(drop)
    }
}

/// No rule decides anything.
pub(crate) fn asking() -> Access {
    Access::open().asking_service()
}

/// Of a node before anybody has changed anything.
pub(crate) fn first_access(options: Options, mob: &Mob) -> Access {
    if options.service { asking() } else { mob.access() }
}

/// Little is remembered. Nobody has a will: one that the service has yet to allow is none, so it
/// may be lost.
pub(crate) fn ask_for_everything(
    options: Options,
    settings: &mut Settings,
    clients: &mut [ModelClient],
) {
    if !options.service {
        return;
    }
    settings.service =
        Some(ServiceSettings { entries_max: 2, holds_ms: 3000, no_match_allows: false });
    clients.iter_mut().for_each(|client| client.habit = None);
}
