//! The index against a plain list of everything that was ever asked for.

mod common;

use proptest::prelude::*;
use proptest::sample;
use topic::{Index, Matches, Subscription};

#[derive(Clone, Debug)]
enum Op {
    Subscribe {
        filter: String,
        subscription: Subscription,
    },
    Unsubscribe {
        filter: String,
        subscriber: u32,
    },
    /// Ends a subscription that exists.
    Leave(sample::Index),
    AddGroup {
        filter: String,
        group: u32,
    },
    RemoveGroup {
        filter: String,
        group: u32,
    },
    /// Ends a group's listening that exists.
    LeaveGroup(sample::Index),
    Publish {
        topic: String,
    },
}

#[derive(Debug, Default)]
struct Model {
    subscriptions: Vec<(String, Subscription)>,
    groups: Vec<(String, u32)>,
}

impl Model {
    fn listens(&self, filter: &str) -> bool {
        self.subscriptions.iter().any(|(other, _)| other == filter)
            || self.groups.iter().any(|(other, _)| other == filter)
    }

    fn promises(&self, filter: &str) -> usize {
        let promising = |(other, one): &&(String, Subscription)| other == filter && one.promises();
        self.subscriptions.iter().filter(promising).count()
    }

    fn position(&self, filter: &str, subscriber: u32) -> Option<usize> {
        let is_same =
            |(other, one): &(String, Subscription)| other == filter && one.subscriber == subscriber;
        self.subscriptions.iter().position(is_same)
    }

    fn filter_count(&self) -> usize {
        let mut filters: Vec<&String> =
            self.subscriptions.iter().map(|(filter, _)| filter).collect();
        filters.extend(self.groups.iter().map(|(filter, _)| filter));
        filters.sort();
        filters.dedup();
        filters.len()
    }
}

fn op() -> impl Strategy<Value = Op> {
    let filter = common::filter;
    let subscription = (0..4_u32, 0..3_u8, any::<bool>(), 0..3_u32).prop_map(
        |(subscriber, options, promises, identifier)| {
            let promise = if promises { Subscription::PROMISES } else { 0 };
            Subscription { subscriber, options: options | promise, identifier }
        },
    );
    prop_oneof![
        4 => (filter(), subscription)
            .prop_map(|(filter, subscription)| Op::Subscribe { filter, subscription }),
        3 => any::<sample::Index>().prop_map(Op::Leave),
        1 => any::<sample::Index>().prop_map(Op::LeaveGroup),
        1 => (filter(), 0..4_u32)
            .prop_map(|(filter, subscriber)| Op::Unsubscribe { filter, subscriber }),
        1 => (filter(), 0..3_u32).prop_map(|(filter, group)| Op::AddGroup { filter, group }),
        1 => (filter(), 0..3_u32).prop_map(|(filter, group)| Op::RemoveGroup { filter, group }),
        4 => common::topic().prop_map(|topic| Op::Publish { topic }),
    ]
}

fn subscribe(index: &mut Index, model: &mut Model, filter: String, subscription: Subscription) {
    let (listened, promised) = (model.listens(&filter), model.promises(&filter));
    let outcome = index.subscribe(&filter, subscription);
    let position = model.position(&filter, subscription.subscriber);
    let replaced = position.map(|at| model.subscriptions.swap_remove(at).1);
    model.subscriptions.push((filter.clone(), subscription));
    assert_eq!(outcome.replaced, replaced);
    assert_eq!(outcome.is_new_subscription, replaced.is_none());
    assert_eq!(outcome.is_first, !listened);
    assert_eq!(outcome.is_first_promise, promised == 0 && model.promises(&filter) == 1);
    assert_eq!(outcome.is_last_promise, promised == 1 && model.promises(&filter) == 0);
    assert_eq!(index.text(outcome.filter), filter);
}

fn unsubscribe(index: &mut Index, model: &mut Model, filter: &str, subscriber: u32) {
    let position = model.position(filter, subscriber);
    let promised = model.promises(filter);
    let removed = position.map(|at| model.subscriptions.swap_remove(at).1);
    let id = index.find(filter);
    let outcome = id.and_then(|id| index.unsubscribe(id, subscriber));
    assert_eq!(outcome.and_then(|outcome| outcome.removed), removed);
    if let Some(outcome) = outcome {
        assert_eq!(outcome.is_last, !model.listens(filter));
        assert_eq!(outcome.is_last_promise, promised == 1 && model.promises(filter) == 0);
    }
}

fn add_group(index: &mut Index, model: &mut Model, filter: String, group: u32) {
    let listened = model.listens(&filter);
    let is_known = model.groups.contains(&(filter.clone(), group));
    let outcome = index.add_group(&filter, group);
    assert_eq!((outcome.is_first, outcome.is_new_subscription), (!listened, !is_known));
    if !is_known {
        model.groups.push((filter, group));
    }
}

fn remove_group(index: &mut Index, model: &mut Model, filter: &str, group: u32) {
    let position = model.groups.iter().position(|(other, one)| other == filter && *one == group);
    if let Some(at) = position {
        model.groups.swap_remove(at);
    }
    let outcome = index.find(filter).and_then(|id| index.remove_group(id, group));
    let expected = position.map(|_| !model.listens(filter));
    assert_eq!(outcome.map(|outcome| outcome.is_last), expected);
}

fn publish(index: &mut Index, model: &Model, topic: &str) {
    let mut expected: Vec<_> = model
        .subscriptions
        .iter()
        .filter(|(filter, _)| topic::matches(filter, topic))
        .map(|(_, one)| (one.subscriber, one.options, one.identifier))
        .collect();
    let matching = model.groups.iter().filter(|(filter, _)| topic::matches(filter, topic));
    let mut expected_groups: Vec<u32> = matching.map(|(_, group)| *group).collect();
    expected.sort_unstable();
    expected_groups.sort_unstable();
    // Twice: the second answer comes from the route cache.
    for _ in 0..2 {
        let mut found = Matches::default();
        index.matches(topic.as_bytes(), &mut found);
        let key = |one: &Subscription| (one.subscriber, one.options, one.identifier);
        let mut subscriptions: Vec<_> = found.subscriptions.iter().map(key).collect();
        subscriptions.sort_unstable();
        found.groups.sort_unstable();
        assert_eq!(subscriptions, expected, "{topic}");
        assert_eq!(found.groups, expected_groups, "{topic}");

        let mut filters = Vec::new();
        index.matching_filters(topic.as_bytes(), &mut filters);
        let listening = filters.iter().map(|&id| index.subscriptions(id).len()).sum::<usize>();
        assert_eq!(listening, expected.len());
        filters.sort_unstable();
        filters.dedup();
        let groups = filters.iter().map(|&id| index.groups(id).len()).sum::<usize>();
        assert_eq!(groups, expected_groups.len());
    }
}

fn apply(index: &mut Index, model: &mut Model, op: Op) {
    match op {
        Op::Subscribe { filter, subscription } => subscribe(index, model, filter, subscription),
        Op::Unsubscribe { filter, subscriber } => unsubscribe(index, model, &filter, subscriber),
        Op::Leave(any) if !model.subscriptions.is_empty() => {
            let (filter, one) = any.get(&model.subscriptions).clone();
            unsubscribe(index, model, &filter, one.subscriber);
        }
        Op::LeaveGroup(any) if !model.groups.is_empty() => {
            let (filter, group) = any.get(&model.groups).clone();
            remove_group(index, model, &filter, group);
        }
        Op::Leave(_) | Op::LeaveGroup(_) => {}
        Op::AddGroup { filter, group } => add_group(index, model, filter, group),
        Op::RemoveGroup { filter, group } => remove_group(index, model, &filter, group),
        Op::Publish { topic } => publish(index, model, &topic),
    }
    assert_eq!(index.subscription_count(), model.subscriptions.len());
    assert_eq!(index.filter_count(), model.filter_count());
}

proptest! {
    #[test]
    fn the_index_answers_as_a_plain_list_would(
        seed: u64,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut index = Index::new(seed);
        let mut model = Model::default();
        for op in ops {
            apply(&mut index, &mut model, op);
        }
        for (filter, one) in model.subscriptions.clone() {
            unsubscribe(&mut index, &mut model, &filter, one.subscriber);
        }
        for (filter, group) in model.groups.clone() {
            remove_group(&mut index, &mut model, &filter, group);
        }
        prop_assert_eq!(index.filter_count(), 0);
        publish(&mut index, &model, "a/b");
    }
}
