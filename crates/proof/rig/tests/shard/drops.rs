//! What is dropped counts at the limit that was the reason.

use broker::{ConnectRequest, Event, Limits, Memory, Quota, Settings};
use rig::{Conn, Lab, SCOPES, persistent, publish_numbers, request, window, with_limits};
use session::{Dropped, Overflow, QueueLimit, QueueLimits};

const POLICIES: [Overflow; 4] =
    [Overflow::DropOldest, Overflow::DropNewest, Overflow::Reject, Overflow::Disconnect];

fn labs(settings: &Settings) -> [Lab; 2] {
    let access = policy::Access::open();
    [Lab::with(2, settings.clone(), access), Lab::durable_with(2, settings.clone())]
}

/// A session that is away, with a queue of these limits, and a publisher, both of one owner.
fn away(lab: &mut Lab, queue: QueueLimits) -> Conn {
    let of =
        |request| ConnectRequest { scope: SCOPES[0], username: Some("anna".into()), ..request };
    let limits = Limits { queue, ..window(1) };
    let conn = lab.open(of(with_limits(persistent("away"), limits)));
    lab.subscribe(conn, "t", 1);
    lab.cut(conn);
    lab.open(of(request("publisher")))
}

/// How many were dropped at each limit, of sessions.
fn by_limit(lab: &Lab) -> Vec<(QueueLimit, u64)> {
    let of = |limit: QueueLimit| {
        let shards = lab.shared.metrics.iter();
        (limit, shards.map(|metrics| metrics.dropped_queue_full.of(limit as usize)).sum::<u64>())
    };
    QueueLimit::ALL.into_iter().map(of).filter(|(_, count)| *count > 0).collect()
}

/// The same, as events say it.
fn reported(lab: &mut Lab) -> Vec<(QueueLimit, u64)> {
    lab.pass_secs(2);
    let mut all = Vec::new();
    for limit in QueueLimit::ALL {
        let of = |event: &Event| match event {
            Event::Dropped { reason, count, .. } => {
                (*reason == Dropped::QueueFull(limit)).then_some(*count)
            }
            _ => None,
        };
        let count = lab.events.iter().filter_map(of).sum::<u64>();
        all.extend((count > 0).then_some((limit, count)));
    }
    all
}

#[test]
fn a_drop_counts_at_the_limit_of_its_queue() {
    let standard = Limits::default().queue;
    for overflow in POLICIES {
        for (limit, queue) in [
            (QueueLimit::Messages, QueueLimits { messages_max: 5, overflow, ..standard }),
            (QueueLimit::Bytes, QueueLimits { bytes_max: 400, overflow, ..standard }),
        ] {
            for (number, mut lab) in labs(&Settings::default()).into_iter().enumerate() {
                let publisher = away(&mut lab, queue);
                publish_numbers(&mut lab, publisher, "t", 0..30);
                let dropped = by_limit(&lab);
                assert!(
                    matches!(dropped[..], [(own, 15..)] if own == limit),
                    "{dropped:?} {number}"
                );
                assert_eq!(reported(&mut lab), dropped, "{overflow:?} {limit:?} {number}");
            }
        }
    }
}

#[test]
fn a_drop_counts_at_the_limit_that_queues_share() {
    for overflow in POLICIES {
        for limit in [QueueLimit::Share, QueueLimit::Namespace, QueueLimit::Memory] {
            let queues_bytes_max = if limit == QueueLimit::Share { 2_000 } else { u64::MAX };
            let settings = Settings { queues_bytes_max, ..Settings::default() };
            let mut lab = Lab::with(2, settings, policy::Access::open());
            let publisher = away(&mut lab, QueueLimits { overflow, ..Limits::default().queue });
            match limit {
                QueueLimit::Namespace => {
                    let space = lab.shared.spaces.open(SCOPES[0]);
                    space.set_limit(Quota::QueuedBytes, Some(1_000));
                }
                QueueLimit::Memory => lab.shared.set_memory_left(Memory::Tight, 1_000),
                _ => {}
            }
            publish_numbers(&mut lab, publisher, "t", 0..30);
            let dropped = by_limit(&lab);
            assert!(matches!(dropped[..], [(own, 10..)] if own == limit), "{limit:?}: {dropped:?}");
            assert_eq!(reported(&mut lab), dropped, "{overflow:?} {limit:?}");
        }
    }
}

#[test]
fn a_drop_of_a_group_counts_at_the_limit_of_its_queue() {
    let standard = Settings::default().share_queue;
    for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
        for (limit, share_queue) in [
            (QueueLimit::Messages, QueueLimits { messages_max: 5, overflow, ..standard }),
            (QueueLimit::Bytes, QueueLimits { bytes_max: 400, overflow, ..standard }),
        ] {
            for mut lab in labs(&Settings { share_queue, ..Settings::default() }) {
                let member = lab.open(persistent("member"));
                lab.subscribe(member, "$share/g/t", 1);
                lab.cut(member);
                let publisher = lab.open(request("publisher"));
                publish_numbers(&mut lab, publisher, "t", 0..30);
                lab.pass_secs(2);
                let of = |place| {
                    lab.shared.metrics.iter().map(|it| it.dropped_group.of(place)).sum::<u64>()
                };
                let all = lab.total(|metrics| &metrics.dropped_group);
                assert!(all >= 5 && of(limit as usize) == all, "{overflow:?} {limit:?} {all}");
                let reported = lab.events.iter().filter_map(|event| match event {
                    Event::GroupDropped { limit, count, .. } => Some((*limit, *count)),
                    _ => None,
                });
                let reported: Vec<_> = reported.collect();
                assert!(reported.iter().all(|(own, _)| *own == Some(limit)), "{reported:?}");
                assert_eq!(reported.iter().map(|(_, count)| count).sum::<u64>(), all);
            }
        }
    }
}
