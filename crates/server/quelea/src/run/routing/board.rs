//! What operators and metrics read of streams and consumers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use broker::streams::ConsumerNumber;
use routing::definitions::Entry;
use streams::{ConsumerView, State, StreamView};

use super::OperatorFile;
use super::figures::{Names, RoutingFigures, RuleFigures, StreamFigures};

/// As of the last look of the owner: once a second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reported {
    pub(crate) consumers: Vec<ConsumerView>,
    pub(crate) streams: Vec<StreamView>,
    /// Consumers that operators have paused.
    pub(crate) paused: BTreeSet<ConsumerNumber>,
    /// Consumers that have messages without an outcome.
    pub(crate) busy: BTreeMap<ConsumerNumber, Progress>,
    /// Bytes of the records in memory.
    pub(crate) memory_bytes: u64,
}

/// The last time that a consumer got on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    run: u64,
    outcomes: u64,
    pub(crate) at_ms: u64,
}

impl Progress {
    /// As of now. None: there is nothing to do.
    pub(super) fn of(view: &ConsumerView, before: Option<&Self>, now_ms: u64) -> Option<Self> {
        let (run, outcomes) = (view.run, view.sum.outcomes.iter().sum());
        let same = before.filter(|it| (it.run, it.outcomes) == (run, outcomes));
        let at_ms = same.map_or(now_ms, |it| it.at_ms);
        (view.sum.lag() > 0).then_some(Self { run, outcomes, at_ms })
    }
}

/// All definitions without their secrets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defined {
    pub(crate) file: Vec<Entry>,
    /// Those of the API.
    pub(crate) own: Vec<Entry>,
}

impl Defined {
    pub(super) fn new(file: &OperatorFile, own: &[Entry]) -> Self {
        let shown = |all: &[Entry]| all.iter().map(Entry::shown).collect();
        Self { file: shown(&file.entries), own: shown(own) }
    }
}

/// Shared by the owner, the API and metrics.
#[derive(Debug, Default)]
pub(crate) struct Board {
    reported: Mutex<Arc<Reported>>,
    names: Mutex<Arc<Names>>,
    defined: Mutex<Arc<Defined>>,
}

impl Board {
    pub(crate) fn reported(&self) -> Arc<Reported> {
        Arc::clone(&self.reported.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn names(&self) -> Arc<Names> {
        Arc::clone(&self.names.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn defined(&self) -> Arc<Defined> {
        Arc::clone(&self.defined.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn put_defined(&self, defined: Defined) {
        *self.defined.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(defined);
    }

    pub(super) fn put(&self, reported: Reported) {
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(reported);
    }

    pub(super) fn put_names(&self, names: Names) {
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
    }

    /// Streams and rules, in the order of their names.
    pub(crate) fn figures(&self) -> RoutingFigures {
        let (reported, names) = (self.reported(), self.names());
        let streams = reported.streams.iter().filter_map(|view| {
            let spec = Arc::clone(names.streams.get(&view.stream)?);
            Some(StreamFigures { spec, view: view.clone() })
        });
        let rules = reported.consumers.iter().filter_map(|view| {
            Some(RuleFigures {
                facts: Arc::clone(names.consumers.get(&view.consumer)?),
                is_paused: reported.paused.contains(&view.consumer),
                stalled_since_ms: reported.busy.get(&view.consumer).map(|it| it.at_ms),
                view: view.clone(),
            })
        });
        let (mut streams, mut rules): (Vec<_>, Vec<_>) = (streams.collect(), rules.collect());
        // One that was removed, and is defined again, may have rules that have not ended yet. The
        // name is that of the new one.
        streams.sort_by_cached_key(|it| (it.spec.name.clone(), Reverse(it.view.stream)));
        streams.dedup_by(|later, first| later.spec.name == first.spec.name);
        // A rule that was removed, and is defined again, may not have ended yet.
        let key = |it: &RuleFigures| (it.name().to_owned(), it.view.state == State::Ending);
        rules.sort_by_cached_key(key);
        rules.dedup_by(|later, first| later.name() == first.name());
        RoutingFigures { streams, rules, memory_bytes: reported.memory_bytes }
    }
}
