//! Streams and rules with what is defined of them and what was counted: for the API and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::streams::{ConsumerNumber, StreamNumber};
use data::Numbers;
use routing::Definitions;
use routing::definitions::{DEFAULT_NAMESPACE, RuleSpec, StreamSpec};
use streams::{ConsumerView, Position, StreamView};

/// What is defined of a rule.
#[derive(Clone, Debug)]
pub struct RuleFacts {
    pub spec: RuleSpec,
    /// The namespace of its stream.
    pub namespace: String,
}

/// A stream at a moment.
#[derive(Clone, Debug)]
pub struct StreamFigures {
    pub spec: Arc<StreamSpec>,
    pub view: StreamView,
}

/// A rule at a moment.
#[derive(Clone, Debug)]
pub struct RuleFigures {
    pub facts: Arc<RuleFacts>,
    pub view: ConsumerView,
    /// An operator has paused it.
    pub is_paused: bool,
    /// It has messages, and none of them has got an outcome since this broker time.
    pub stalled_since_ms: Option<u64>,
}

/// All streams and rules, each in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct RoutingFigures {
    pub streams: Vec<StreamFigures>,
    pub rules: Vec<RuleFigures>,
    /// Bytes of messages in memory.
    pub memory_bytes: u64,
}

/// What the numbers stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(super) streams: BTreeMap<StreamNumber, Arc<StreamSpec>>,
    pub(super) consumers: BTreeMap<ConsumerNumber, Arc<RuleFacts>>,
}

impl RuleFigures {
    pub fn name(&self) -> &str {
        self.facts.spec.name()
    }

    /// Where the rule goes on after a start: all messages ahead of it have their outcome.
    pub fn position(&self) -> String {
        let shards = self.view.shards.iter();
        Position(shards.map(|shard| (shard.shard, shard.floor)).collect()).text()
    }
}

impl Names {
    pub(super) fn new(numbers: &Numbers, definitions: &Definitions) -> Self {
        let mut names = Self::default();
        for spec in &definitions.streams {
            let Some(numbered) = numbers.stream(&spec.name) else { continue };
            names.streams.insert(StreamNumber(numbered.number), Arc::new(spec.clone()));
        }
        for spec in &definitions.rules {
            let Some(number) = numbers.consumer(spec.name()) else { continue };
            let facts = RuleFacts {
                namespace: definitions
                    .stream(&spec.stream)
                    .map_or(DEFAULT_NAMESPACE, |stream| &stream.namespace)
                    .to_owned(),
                spec: spec.clone(),
            };
            names.consumers.insert(ConsumerNumber(number), Arc::new(facts));
        }
        names
    }

    /// Adds what is not defined any more and has not ended yet.
    pub(super) fn keep(
        &mut self,
        before: &Self,
        has_stream: impl Fn(StreamNumber) -> bool,
        has_consumer: impl Fn(ConsumerNumber) -> bool,
    ) {
        for (number, spec) in before.streams.iter().filter(|(number, _)| has_stream(**number)) {
            self.streams.entry(*number).or_insert_with(|| Arc::clone(spec));
        }
        for (number, facts) in before.consumers.iter().filter(|(number, _)| has_consumer(**number))
        {
            self.consumers.entry(*number).or_insert_with(|| Arc::clone(facts));
        }
    }

    pub(crate) fn stream(&self, number: StreamNumber) -> &str {
        self.streams.get(&number).map_or("", |spec| &spec.name)
    }

    pub(crate) fn consumer(&self, number: ConsumerNumber) -> &str {
        self.consumers.get(&number).map_or("", |facts| facts.spec.name())
    }
}
