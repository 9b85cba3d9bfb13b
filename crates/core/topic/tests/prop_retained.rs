//! Retained messages against a plain map, and paged walks while the topics change in between.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample;
use topic::{Retainable, Retained};

#[derive(Debug, PartialEq)]
struct Named(String, u32);

impl Retainable for Named {
    fn topic(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(String, u32),
    Remove(String),
    /// Removes a topic that is there.
    RemoveStored(sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (common::topic(), any::<u32>()).prop_map(|(topic, value)| Op::Insert(topic, value)),
        1 => common::topic().prop_map(Op::Remove),
        1 => any::<sample::Index>().prop_map(Op::RemoveStored),
    ]
}

/// Returns the topic that is gone.
fn apply(
    retained: &mut Retained<Named>,
    model: &mut BTreeMap<String, u32>,
    op: Op,
) -> Option<String> {
    let removed = match op {
        Op::Insert(topic, value) => {
            let replaced = retained.insert(Named(topic.clone(), value));
            assert_eq!(replaced.map(|old| old.1), model.insert(topic, value));
            None
        }
        Op::Remove(topic) => Some(topic),
        Op::RemoveStored(any) if !model.is_empty() => {
            model.keys().nth(any.index(model.len())).cloned()
        }
        Op::RemoveStored(_) => None,
    };
    if let Some(topic) = &removed {
        assert_eq!(retained.remove(topic).map(|old| old.1), model.remove(topic));
    }
    assert_eq!(retained.len(), model.len());
    removed
}

proptest! {
    #[test]
    fn a_walk_reports_what_a_plain_map_holds(
        ops in prop::collection::vec(op(), 0..80),
        filter in common::filter(),
        max in 1..20_usize,
    ) {
        let (mut retained, mut model) = (Retained::new(), BTreeMap::new());
        for op in ops {
            apply(&mut retained, &mut model, op);
        }
        let mut found = BTreeMap::new();
        let mut after = None;
        loop {
            let mut count = 0;
            after = retained.walk(&filter, after, max, &mut |Named(topic, value)| {
                assert_eq!(found.insert(topic.clone(), *value), None, "{topic} twice");
                count += 1;
            });
            prop_assert!(count <= max);
            if after.is_none() {
                break;
            }
        }
        for (topic, value) in &model {
            prop_assert_eq!(retained.get(topic).map(|message| &message.1), Some(value));
        }
        model.retain(|topic, _| topic::matches(&filter, topic));
        prop_assert_eq!(found, model);
    }

    #[test]
    fn topics_that_stay_are_reported_once_whatever_changes_between_pages(
        before in prop::collection::vec(op(), 0..80),
        between in prop::collection::vec(prop::collection::vec(op(), 0..6), 0..40),
        filter in common::filter(),
        max in 1..5_usize,
    ) {
        let (mut retained, mut model) = (Retained::new(), BTreeMap::new());
        for op in before {
            apply(&mut retained, &mut model, op);
        }
        let is_wanted = |topic: &&String| topic::matches(&filter, topic);
        let mut stayed: BTreeSet<String> = model.keys().filter(is_wanted).cloned().collect();
        let mut found = BTreeSet::new();
        let mut between = between.into_iter();
        let mut after = None;
        loop {
            after = retained.walk(&filter, after, max, &mut |Named(topic, value)| {
                assert_eq!(model.get(topic), Some(value));
                assert!(topic::matches(&filter, topic), "{topic}");
                assert!(found.insert(topic.to_string()), "{topic} twice");
            });
            if after.is_none() {
                break;
            }
            for op in between.next().unwrap_or_default() {
                if let Some(removed) = apply(&mut retained, &mut model, op) {
                    stayed.remove(&removed);
                }
            }
        }
        prop_assert!(found.is_superset(&stayed), "missed {:?}", stayed.difference(&found));
    }
}
