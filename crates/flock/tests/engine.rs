//! Small runs of each family against Debian's mosquitto.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Mosquitto, pairs, run_on, total};
use flock::engine::BrokerAccess;
use flock::measure::{LatencyKind, Outcome};

#[test]
fn pairs_at_every_qos_lose_nothing() {
    let broker = Mosquitto::start();
    for qos in 0..3_u8 {
        let results = run_on(&pairs(20, 50, qos, 200), &broker.address, BrokerAccess::None);
        println!("{:#?} {:?}", results.totals, results.errors);
        assert_eq!(results.run.outcome, Outcome::Completed);
        assert_eq!(results.totals.published[usize::from(qos)], 1_000);
        let total = total(&results);
        assert_eq!((total.expected, total.received, total.lost), (1_000, 1_000, 0));
        assert!(results.integrity.is_clean(), "{:?}", results.integrity);
        let latency = results.latency(LatencyKind::EndToEnd, Some(qos)).unwrap();
        assert_eq!(latency.summary.count, 1_000);
        let acked = results.latency(LatencyKind::PublishAck, Some(qos));
        assert_eq!(acked.map_or(0, |acked| acked.summary.count), if qos > 0 { 1_000 } else { 0 });
    }
}
