//! Spans of messages: their parents, and what is no part of a trace.

use broker::{Name, Span, SpanKind, SpanSettings, TraceContext, TraceFilter};
use codec::{Packet, Property, PropertyBuf, Publish, Reason, Version};
use session::Overflow;

use broker::{Limits, RECEIVED_PER_CLIENT_MAX, SPANS_MAX, SPANS_PER_MESSAGE_MAX, Settings};
use policy::Access;
use rig::{Conn, Lab, level, of_version, queue, request, request_with};

const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn lab_with(settings: Settings) -> Lab {
    let spans = Some(SpanSettings { sampled_per_million: 0 });
    Lab::with(1, Settings { spans, ..settings }, Access::open())
}

fn lab() -> Lab {
    lab_with(Settings::default())
}

fn publish(lab: &mut Lab, conn: Conn, qos: u8, payload: &[u8]) {
    publish_only(lab, conn, qos, payload);
    lab.settle();
}

fn publish_only(lab: &mut Lab, conn: Conn, qos: u8, payload: &[u8]) {
    let mut properties = PropertyBuf::new();
    properties.push(Property::User("traceparent", GIVEN));
    let packet = Packet::Publish(Publish {
        dup: false,
        qos: level(qos),
        retain: false,
        topic: "a/b",
        packet_id: u16::from(qos > 0),
        properties: properties.as_properties(),
        payload,
    });
    lab.send_only(conn, &packet);
}

/// As the driver takes them.
fn spans(lab: &mut Lab) -> (Vec<Span>, u64) {
    let effects = lab.shards[0].effects_mut();
    if effects.has_traced() { effects.take_spans() } else { (Vec::new(), 0) }
}

fn given() -> TraceContext {
    TraceContext::parse(GIVEN).expect("a valid traceparent")
}

#[test]
fn a_packet_has_its_span_when_it_is_written_whole() {
    let mut lab = lab();
    let subscriber = lab.open(request("s"));
    lab.subscribe(subscriber, "a/#", 0);
    let publisher = lab.open(request("p"));
    lab.flush();
    spans(&mut lab);
    // Small ones go out in one piece, a large one is sent from the message.
    for (payload, portion) in [(&[1; 10][..], 1), (&[2; 40_000], 997)] {
        publish_only(&mut lab, publisher, 0, payload);
        let (received, lost) = spans(&mut lab);
        assert_eq!((received.len(), lost), (1, 0));
        let own = &received[0];
        assert_eq!((own.kind, own.parent), (SpanKind::Receive, Some(given().span_id)));
        assert_eq!(own.context.trace_id, given().trace_id);
        let mut sent = Vec::new();
        while sent.is_empty() {
            lab.write_some(subscriber, portion);
            sent.extend(spans(&mut lab).0);
        }
        let (shard, slot) = lab.place(subscriber);
        assert!(lab.shards[shard].outbox(slot, subscriber).is_some_and(|own| own.is_empty()));
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!((sent[0].kind, sent[0].parent), (SpanKind::Send, Some(own.context.span_id)));
        assert_eq!((sent[0].payload_bytes, &*sent[0].topic), (payload.len(), "a/b"));
        assert_eq!((&*sent[0].client_id, &*own.client_id), ("s", "p"));
        lab.settle();
    }
}

/// An operator disconnects it: what it still gets has spans. A network connection that is gone
/// takes nothing any more.
#[test]
fn the_last_packets_of_a_connection_have_spans_if_they_are_sent() {
    for is_gone in [false, true] {
        let mut lab = lab();
        let subscriber = lab.open(request("s"));
        lab.subscribe(subscriber, "a/#", 0);
        let publisher = lab.open(request("p"));
        lab.flush();
        publish_only(&mut lab, publisher, 0, b"x");
        assert_eq!(spans(&mut lab).0.len(), 1, "only that of the receipt");
        let (shard, slot) = lab.place(subscriber);
        let now_ms = lab.now_ms;
        match is_gone {
            true => lab.shards[shard].on_closed(slot, subscriber, now_ms),
            false => assert!(lab.shards[shard].on_kick(Name::first("s"), now_ms)),
        }
        let (sent, lost) = spans(&mut lab);
        let kinds: Vec<SpanKind> = sent.iter().map(|span| span.kind).collect();
        let expected = if is_gone { vec![] } else { vec![SpanKind::Send] };
        assert_eq!((kinds, lost), (expected, 0));
    }
}

#[test]
fn a_refused_message_has_a_span_with_the_reason() {
    let mut lab = lab_with(Settings { rejects: true, ..Settings::default() });
    let slow = Limits { in_flight_max: 1, ..queue(1, Overflow::Reject) };
    let subscriber = lab.open(request_with("s", slow));
    lab.subscribe(subscriber, "a/b", 1);
    let publisher = lab.open(request("p"));
    let refused = (0..5).find_map(|_| {
        publish(&mut lab, publisher, 1, b"x");
        spans(&mut lab).0.into_iter().find_map(|span| span.refused)
    });
    assert_eq!(refused, Some(Reason::QUOTA_EXCEEDED));
}

#[test]
fn a_client_of_an_older_version_gets_no_span_and_no_context() {
    let mut lab = lab();
    let subscriber = lab.open(of_version(Version::V311, "s"));
    lab.subscribe(subscriber, "a/b", 0);
    let publisher = lab.open(request("p"));
    publish(&mut lab, publisher, 0, b"x");
    let (all, _) = spans(&mut lab);
    assert_eq!(all.iter().map(|span| span.kind).collect::<Vec<_>>(), [SpanKind::Receive]);
    assert_eq!(lab.payloads(subscriber), ["x"]);
}

#[test]
fn a_publisher_gets_so_many_spans_in_a_second_and_its_messages_go_on() {
    let mut lab = lab();
    let subscriber = lab.open(request("s"));
    lab.subscribe(subscriber, "a/b", 0);
    let publisher = lab.open(request("p"));
    let all = RECEIVED_PER_CLIENT_MAX + 50;
    let (mut received, mut lost) = (0, 0);
    for _ in 0..all {
        publish(&mut lab, publisher, 0, b"x");
        let (own, more) = spans(&mut lab);
        received += own.iter().filter(|span| span.kind == SpanKind::Receive).count() as u32;
        lost += more;
    }
    assert_eq!((received, lost), (RECEIVED_PER_CLIENT_MAX, 50));
    assert_eq!(lab.payloads(subscriber).len() as u32, all);
}

#[test]
fn the_last_spans_that_are_lost_are_reported_without_a_further_one() {
    let spans_of_all = Some(SpanSettings { sampled_per_million: 1_000_000 });
    let settings = Settings { spans: spans_of_all, ..Settings::default() };
    let mut lab = Lab::with(1, settings, Access::open());
    let publisher = lab.open(request("p"));
    let mut lost = 0;
    for _ in 0..RECEIVED_PER_CLIENT_MAX + 50 {
        lab.publish(publisher, "a/b", b"x", 0, 0);
        lost += spans(&mut lab).1;
    }
    assert_eq!(lost, 50);
}

#[test]
fn spans_that_nobody_takes_are_few() {
    let mut lab = lab();
    let subscribers: Vec<_> = (0..40).map(|n| lab.open(request(&format!("s{n}")))).collect();
    for subscriber in subscribers {
        lab.subscribe(subscriber, "a/b", 0);
    }
    let publisher = lab.open(request("p"));
    publish(&mut lab, publisher, 0, b"x");
    let (all, lost) = spans(&mut lab);
    assert_eq!((all.len() as u32, lost), (1 + SPANS_PER_MESSAGE_MAX, 0));
    let left_out: u32 = all.iter().map(|span| span.left_out).sum();
    assert_eq!(left_out, 40 - SPANS_PER_MESSAGE_MAX);
    for _ in 0..SPANS_MAX / SPANS_PER_MESSAGE_MAX as usize + 1 {
        publish(&mut lab, publisher, 0, b"x");
    }
    let (all, lost) = spans(&mut lab);
    assert_eq!(all.len(), SPANS_MAX);
    assert!(lost > 0);
}

#[test]
fn a_live_trace_comes_and_goes_without_an_effect_on_spans() {
    let mut lab = lab();
    let subscriber = lab.open(request("s"));
    lab.subscribe(subscriber, "a/b", 0);
    let publisher = lab.open(request("p"));
    let kinds = |lab: &mut Lab| spans(lab).0.iter().map(|span| span.kind).collect::<Vec<_>>();
    for filters in [vec![TraceFilter::default()], vec![], vec![TraceFilter::default()]] {
        let count = filters.len();
        lab.shards[0].set_traces(&filters.into());
        publish(&mut lab, publisher, 0, b"x");
        assert_eq!(kinds(&mut lab), [SpanKind::Receive, SpanKind::Send]);
        let traced = std::mem::take(&mut lab.shards[0].effects_mut().traced);
        assert_eq!(traced.iter().filter(|own| own.packet == "PUBLISH").count(), 2 * count);
    }
}
