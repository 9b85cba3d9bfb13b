//! Properties of patterns, assignments, scaling and the parsers.

use std::collections::BTreeSet;

use flock_model::catalogue;
use flock_model::scenario::{self, Choice};
use flock_model::{Assign, Pattern, Rate, Slice};
use proptest::prelude::*;

fn assign() -> impl Strategy<Value = Assign> {
    prop_oneof![
        Just(Assign::Pairwise),
        Just(Assign::All),
        Just(Assign::Partition),
        (1_u32..9).prop_map(Assign::Window),
    ]
}

proptest! {
    /// A topic is a client's exactly when the client is the topic's.
    #[test]
    fn topics_and_clients_agree(rule in assign(), clients in 1_u64..40, topics in 1_u64..40) {
        for client in 0..clients {
            for topic in 0..topics {
                let mine = rule.topics_of(client, clients, topics).position(topic).is_some();
                let its = rule.clients_of(topic, clients, topics).position(client).is_some();
                prop_assert_eq!(mine, its, "client {} topic {}", client, topic);
            }
        }
    }

    /// The parts of a group are the group, each client once.
    #[test]
    fn slices_cover_a_group(count in 0_u64..500, parts in 1_u64..20) {
        let mut all: Vec<u64> = (0..parts)
            .flat_map(|part| {
                let slice = Slice::part(count, part, parts);
                (0..slice.count).map(move |local| slice.global(local))
            })
            .collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..count).collect::<Vec<_>>());
    }

    /// A literal is itself, whatever is in it, also after being written down.
    #[test]
    fn literals_are_literal(text in "\\PC{0,40}") {
        let literal = Pattern::literal(&text);
        prop_assert_eq!(literal.name(3), text.clone());
        let again = Pattern::parse(literal.source());
        prop_assert_eq!(again.map(|pattern| pattern.name(3)), Ok(text));
    }

    /// Below the capacity no name comes twice.
    #[test]
    fn names_differ(digits in 1_u32..4, ranges in 1_u64..9) {
        let pattern = Pattern::parse(&format!("a[xyz]{{{digits}}}/{{1..{ranges}}}"));
        let pattern = pattern.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let capacity = pattern.capacity().unwrap_or(0);
        let names: BTreeSet<String> = (0..capacity).map(|n| pattern.name(n)).collect();
        prop_assert_eq!(names.len() as u64, capacity);
        prop_assert_eq!(capacity, 3_u64.pow(digits) * ranges);
    }

    /// Any text is parsed or refused, and never a panic.
    #[test]
    fn patterns_do_not_panic(text in "[a-c0-3\\[\\]{}()|\\\\.,i?+*-]{0,24}") {
        if let Ok(pattern) = Pattern::parse(&text) {
            let _ = pattern.name(u64::MAX);
            let _ = pattern.name(7);
        }
    }

    /// A line of a good file that is cut, doubled or garbled gives an answer.
    #[test]
    fn files_do_not_panic(at in 0_usize..4_000, cut in 0_usize..60, noise in "[\\[\\]{}=\"a-z$0-9]{0,8}") {
        let text = include_str!("../scenarios/mb-p2p.toml");
        let (from, to) = (text.floor_char_boundary(at), text.floor_char_boundary(at + cut));
        let broken = format!("{}{noise}{}", &text[..from], &text[to..]);
        let other_files = |_: &_| Err(String::new());
        let parsed = scenario::parse("x.toml", &broken, &Choice::default(), &other_files);
        if let Err(error) = parsed {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// The same for Swarm's XML.
    #[test]
    fn xml_does_not_panic(at in 0_usize..4_000, cut in 0_usize..60, noise in "[<>/=\"a-z&; 0-9]{0,8}") {
        let text = include_str!("../scenarios/swarm/hm-200m.xml");
        let (from, to) = (text.floor_char_boundary(at), text.floor_char_boundary(at + cut));
        let broken = format!("{}{noise}{}", &text[..from], &text[to..]);
        let _ = flock_model::swarm::parse("x.xml", &broken, None);
    }

    /// Due times follow the rate exactly, however far out.
    #[test]
    fn due_times_do_not_drift(
        count in 1_u64..1_000,
        per_us in 1_u64..10_000_000,
        periods in 0_u64..1_000_000,
    ) {
        let rate = Rate { count, per_us };
        prop_assert_eq!(rate.due_us(count * periods), per_us * periods);
    }
}

#[test]
fn every_scenario_keeps_its_copies_when_it_is_scaled() {
    for entry in catalogue::entries() {
        let loaded = entry.load().unwrap_or_else(|error| panic!("{error}"));
        let scenario = loaded.scenario;
        let (Some(whole), true) =
            (scenario.estimate().copies_per_message, scenario.groups.iter().all(|g| g.scales))
        else {
            continue;
        };
        // Behind the broker there is one copy, whatever the scale.
        if whole == 0.0 && !scenario.sinks.is_empty() {
            continue;
        }
        let half = scenario.scaled(0.5).estimate().copies_per_message.unwrap_or(0.0);
        // What everybody subscribes to has half the audience at half the scale.
        assert!(
            (half - whole).abs() < 0.01 * whole || (half - whole / 2.0).abs() < 0.01 * whole,
            "{}: {whole} {half}",
            entry.id
        );
    }
}
