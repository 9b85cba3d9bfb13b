//! Packets that operators look at.

use std::sync::Arc;

use broker::TraceFilter;

use rig::{Lab, request};

fn of(number: u8, client_id: &str) -> TraceFilter {
    TraceFilter { number, client_id: Some(client_id.into()), ..TraceFilter::default() }
}

#[test]
fn a_client_that_is_traced_later_is_not_misread_though_others_were_traced() {
    let mut lab = Lab::new(1);
    let (first, second) = (lab.open(request("first")), lab.open(request("second")));
    lab.subscribe(second, "a", 0);
    lab.shards[0].set_traces(&Arc::from([of(0, "first")]));
    lab.publish(first, "b", b"", 0, 0);
    let from = lab.open(request("from"));
    lab.send_only(from, &rig::publish("a", &[7; 300], 0, 0));
    lab.settle_mail();
    // The rest of the packet is written when it is traced.
    lab.write_some(second, 5);
    lab.shards[0].set_traces(&Arc::from([of(0, "first"), of(1, "second")]));
    lab.flush();
    lab.shards[0].effects_mut().traced.clear();
    lab.publish(from, "a", b"whole", 0, 0);
    let traced = std::mem::take(&mut lab.shards[0].effects_mut().traced);
    let packets: Vec<_> =
        traced.iter().map(|it| (it.packet, it.details.topic.as_deref())).collect();
    assert_eq!(packets, [("PUBLISH", Some("a"))]);
    assert_eq!(traced[0].lost_before, 0);
}
