//! Targets: batches of the owner of streams go to them, their answers come back.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use base::Clock;
use broker::streams::ConsumerNumber;
use bytes::Bytes;
use routing::dispatch::{self, BatchId, RecordAnswer};
use streams::Outgoing;
use targets::{Answers, Batch, Full, Outcome, Record, Resolve, System, Target, Threads};

use super::TargetSettings;
use super::inbox::{Inbox, Input};

/// A target of a rule. Rules share one if they have the same target in the same form.
pub(super) struct OpenTarget {
    settings: TargetSettings,
    target: Box<dyn Target>,
    /// Batches that have no answer, by their numbers.
    under_way: BTreeMap<u64, (ConsumerNumber, BatchId)>,
    next_batch: u64,
    /// Its queue was full. Bounded by the lanes of its consumers.
    waiting: VecDeque<Batch>,
}

/// Names of a namespace that are being resolved at a time: resolving waits for servers of its
/// users, on threads of all targets. Policy: a further one fails, and its batch is tried again.
const RESOLVING_MAX: usize = 2;

/// Resolves names for the targets of one namespace.
#[derive(Default)]
struct Resolver {
    resolving: AtomicUsize,
}

impl Resolve for Resolver {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let before = self.resolving.fetch_add(1, Ordering::Relaxed);
        let found = match before < RESOLVING_MAX {
            true => System.resolve(host, port),
            false => Err(io::Error::other("other names of the namespace are being resolved")),
        };
        self.resolving.fetch_sub(1, Ordering::Relaxed);
        found
    }
}

/// All targets in use.
pub(super) struct Targets {
    threads: Threads,
    /// Of namespaces whose users have defined targets in use.
    resolvers: BTreeMap<String, Arc<Resolver>>,
    inbox: Inbox,
    clock: Clock,
    open: Vec<Option<OpenTarget>>,
    of_consumers: BTreeMap<ConsumerNumber, (usize, Arc<str>)>,
}

impl Targets {
    /// # Errors
    ///
    /// The system gives no thread.
    pub(super) fn start(inbox: Inbox, clock: Clock) -> io::Result<Self> {
        let (threads, resolvers) = (Threads::start()?, BTreeMap::new());
        let (open, of_consumers) = (Vec::new(), BTreeMap::new());
        Ok(Self { threads, resolvers, inbox, clock, open, of_consumers })
    }

    /// Opens a target that is not open yet, ahead of [`Targets::assign`].
    ///
    /// # Errors
    ///
    /// A setting is not valid.
    pub(super) fn open(&mut self, settings: &TargetSettings) -> anyhow::Result<usize> {
        let is_same =
            |open: &Option<OpenTarget>| open.as_ref().is_some_and(|it| it.settings == *settings);
        match self.open.iter().position(is_same) {
            Some(place) => Ok(place),
            None => self.start_target(settings),
        }
    }

    /// From now on the consumer sends there. `topic`: of Kafka.
    ///
    /// # Errors
    ///
    /// A setting is not valid.
    pub(super) fn assign(
        &mut self,
        consumer: ConsumerNumber,
        settings: &TargetSettings,
        topic: &str,
    ) -> anyhow::Result<()> {
        let place = self.open(settings)?;
        self.of_consumers.insert(consumer, (place, topic.into()));
        Ok(())
    }

    /// The consumer is gone.
    pub(super) fn forget(&mut self, consumer: ConsumerNumber) {
        self.of_consumers.remove(&consumer);
    }

    /// Closes targets that no consumer has and that owe no answer.
    pub(super) fn close_unused(&mut self) {
        for (place, open) in self.open.iter_mut().enumerate() {
            let is_used = self.of_consumers.values().any(|(own, _)| *own == place);
            let owes = |it: &mut OpenTarget| it.under_way.is_empty() && it.waiting.is_empty();
            if !is_used {
                open.take_if(owes);
            }
        }
        let open = || self.open.iter().flatten().filter_map(|open| open.settings.namespace());
        self.resolvers.retain(|namespace, _| open().any(|own| own == namespace));
    }

    fn start_target(&mut self, settings: &TargetSettings) -> anyhow::Result<usize> {
        let place = match self.open.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.open.push(None);
                self.open.len() - 1
            }
        };
        let inbox = self.inbox.clone();
        let answers: Answers =
            Arc::new(move |answer| inbox.put(Input::Answer { target: place, answer }));
        let resolver: Arc<dyn Resolve> = match settings.namespace() {
            None => Arc::new(System),
            Some(namespace) => self.resolvers.entry(namespace.to_owned()).or_default().clone(),
        };
        let target: Box<dyn Target> = match settings.clone() {
            TargetSettings::Kafka(own) => {
                Box::new(targets::kafka::Kafka::start(&self.threads, own, resolver, answers)?)
            }
            TargetSettings::Http(own) => {
                Box::new(targets::webhook::Webhook::start(&self.threads, own, resolver, answers)?)
            }
        };
        let (under_way, next_batch, waiting) = (BTreeMap::new(), 0, VecDeque::new());
        let settings = settings.clone();
        self.open[place] = Some(OpenTarget { settings, target, under_way, next_batch, waiting });
        Ok(place)
    }

    /// Sends a batch of a consumer.
    pub(super) fn send(
        &mut self,
        consumer: ConsumerNumber,
        batch: BatchId,
        is_alone: bool,
        records: Vec<Outgoing>,
    ) {
        let Some((place, topic)) = self.of_consumers.get(&consumer) else { return };
        let Some(open) = self.open.get_mut(*place).and_then(Option::as_mut) else { return };
        let id = open.next_batch;
        open.next_batch += 1;
        open.under_way.insert(id, (consumer, batch));
        let records = records.into_iter().map(|record| record_of(record, topic)).collect();
        open.waiting.push_back(Batch { id, records, is_alone });
        open.push();
    }

    /// Gives targets what their queues had no space for. True: there is more.
    pub(super) fn push(&mut self) -> bool {
        self.open.iter_mut().flatten().fold(false, |waits, open| open.push() | waits)
    }

    /// Which batch of which consumer a target has answered, and how.
    pub(super) fn on_answer(
        &mut self,
        target: usize,
        answer: targets::Answer,
    ) -> Option<(ConsumerNumber, BatchId, dispatch::Answer)> {
        let open = self.open.get_mut(target)?.as_mut()?;
        let (consumer, batch) = open.under_way.remove(&answer.id)?;
        Some((consumer, batch, answer_of(answer.outcomes, self.clock)))
    }

    /// Batches that have no answer.
    pub(super) fn under_way(&self) -> usize {
        self.open.iter().flatten().map(|open| open.under_way.len()).sum()
    }
}

impl OpenTarget {
    fn push(&mut self) -> bool {
        while let Some(batch) = self.waiting.pop_front() {
            if let Err(Full(batch)) = self.target.send(batch) {
                self.waiting.push_front(batch);
                return true;
            }
        }
        false
    }
}

fn record_of(outgoing: Outgoing, topic: &Arc<str>) -> Record {
    let Outgoing { key, output, time_ms, .. } = outgoing;
    let headers = output.headers.into_iter();
    Record {
        topic: Arc::clone(topic),
        key: key.map(|key| Bytes::from(key.into_bytes())),
        value: Bytes::from(output.body.unwrap_or_default()),
        headers: headers.map(|own| (own.name, Bytes::from(own.value.into_bytes()))).collect(),
        time_ms: i64::try_from(time_ms).ok(),
    }
}

/// The outcomes of a batch in the words of its sender. A target that was away for some records of a
/// batch left these unknown.
fn answer_of(outcomes: Vec<Outcome>, clock: Clock) -> dispatch::Answer {
    let all = |is_so: fn(&Outcome) -> bool| !outcomes.is_empty() && outcomes.iter().all(is_so);
    let reason = || outcomes.iter().find_map(reason_of).unwrap_or_default();
    if all(|outcome| matches!(outcome, Outcome::Unavailable(_))) {
        return dispatch::Answer::Unavailable(reason());
    }
    if all(|outcome| matches!(outcome, Outcome::BatchRefused(_))) {
        return dispatch::Answer::Refused(reason());
    }
    if all(|outcome| matches!(outcome, Outcome::BusyUntil(..))) {
        let until = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::BusyUntil(until, _) => Some(*until),
            _ => None,
        });
        let wait = until.max().map(|until| until.saturating_duration_since(Instant::now()));
        let wait_ms = wait.map_or(0, |wait| wait.as_millis() as u64);
        return dispatch::Answer::Busy { until_ms: clock.now_ms() + wait_ms };
    }
    if all(|outcome| matches!(outcome, Outcome::Unknown(_))) {
        return dispatch::Answer::Unknown(reason());
    }
    let of_record = |outcome| match outcome {
        Outcome::Accepted => RecordAnswer::Accepted,
        Outcome::Refused(why) => RecordAnswer::Refused(why.to_string()),
        Outcome::BatchRefused(why)
        | Outcome::Unknown(why)
        | Outcome::BusyUntil(_, why)
        | Outcome::Unavailable(why) => RecordAnswer::Unknown(why.to_string()),
    };
    dispatch::Answer::Records(outcomes.into_iter().map(of_record).collect())
}

fn reason_of(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Accepted => None,
        Outcome::Refused(why)
        | Outcome::BatchRefused(why)
        | Outcome::Unknown(why)
        | Outcome::BusyUntil(_, why)
        | Outcome::Unavailable(why) => Some(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_all_records_of_a_batch_share_is_said_of_the_batch() {
        let clock = Clock::start();
        let why: Arc<str> = "why".into();
        let two = |outcome: Outcome| answer_of(vec![outcome.clone(), outcome], clock);
        let away = dispatch::Answer::Unavailable("why".into());
        assert_eq!(two(Outcome::Unavailable(why.clone())), away);
        let refused = dispatch::Answer::Refused("why".into());
        assert_eq!(two(Outcome::BatchRefused(why.clone())), refused);
        assert_eq!(two(Outcome::Unknown(why.clone())), dispatch::Answer::Unknown("why".into()));
        let later = Instant::now() + Duration::from_secs(60);
        let busy = two(Outcome::BusyUntil(later, why.clone()));
        let dispatch::Answer::Busy { until_ms } = busy else { panic!("busy, got {busy:?}") };
        assert!(until_ms > clock.now_ms() + 30_000);
        let mixed = answer_of(
            vec![Outcome::Accepted, Outcome::Refused(why.clone()), Outcome::Unavailable(why)],
            clock,
        );
        let expected = vec![
            RecordAnswer::Accepted,
            RecordAnswer::Refused("why".into()),
            RecordAnswer::Unknown("why".into()),
        ];
        assert_eq!(mixed, dispatch::Answer::Records(expected));
    }
}
