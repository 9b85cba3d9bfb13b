//! A session belongs to the user who made it, and what waits for it is judged by the rules of now.

use crate::rows::{
    Step, all, asks, carries_mail, connects, counts, crashes, everyone, gets, is_closed, is_open,
    kept, opens, passes, posts, reads, reports, row, rules, run, sends, settles, v311, waits_ms,
};
use broker::{ConnectRequest, Event, SessionOwner, Settings};
use policy::{Access, Permission};
use rig::Lab;
use session::Dropped;

/// A kept session of a user; nobody has a user name if it is empty.
fn user(name: &'static str) -> impl Fn(ConnectRequest) -> ConnectRequest + 'static {
    let username = Some(name).filter(|name| !name.is_empty());
    move |request| ConnectRequest { username: username.map(Into::into), ..kept(request) }
}

/// Leaves a session, away, with a message in its queue.
fn leaves_a_message(owner: &'static str) -> Step {
    all([
        opens("phone", user(owner)),
        sends("phone", ["subscribe t/# qos1", "cut"]),
        sends("writer", ["publish t/1 secret qos1"]),
    ])
}

fn is_refused(with: impl Fn(ConnectRequest) -> ConnectRequest + 'static) -> Step {
    let refused = "phone#stranger";
    all([connects(refused, with), gets(refused, ["connack not_authorized"]), is_closed(refused)])
}

/// Resumes the session and reads what has waited.
fn resumes(owner: &'static str) -> Step {
    let got = ["connack present", "publish t/1 secret qos1 id1"];
    all([connects("phone", user(owner)), gets("phone", got)])
}

fn is_of_phone(event: &Event) -> bool {
    matches!(event, Event::Stranger { client_id, .. } if &**client_id == "phone")
}

#[test]
fn owners() {
    let clean = |request| ConnectRequest { clean_start: true, ..user("eve")(request) };
    let unproved = |request| ConnectRequest { is_proved: false, ..user("anna")(request) };
    let brief = |request| ConnectRequest { session_expiry_secs: 1, ..user("anna")(request) };
    let owned = |session_owner| {
        Lab::with(1, Settings { session_owner, ..Settings::default() }, Access::open())
    };
    run([
        row("", "another user neither gets a session nor ends it", Lab::new(2)).steps([
            leaves_a_message("anna"),
            is_refused(user("eve")),
            is_refused(clean),
            is_refused(user("")),
            is_refused(unproved),
            counts(|m| &m.strangers, 4),
            reports(is_of_phone, 4),
            resumes("anna"),
        ]),
        row("", "another user does not take a connection over", Lab::new(1)).steps([
            opens("phone", user("anna")),
            sends("phone", ["subscribe t"]),
            is_refused(user("eve")),
            is_refused(v311),
            sends("writer", ["publish t 1"]),
            reads("phone", [1]),
            counts(|m| &m.takeovers, 0),
            // She herself may come from elsewhere.
            opens("phone#2", user("anna")),
            is_closed("phone"),
        ]),
        row("", "a session without a user is for those without a user name", Lab::new(1)).steps([
            leaves_a_message(""),
            is_refused(user("anna")),
            resumes(""),
        ]),
        row(
            "",
            "where all have names, the first adopts what was made without one",
            owned(SessionOwner::User { may_adopt: true }),
        )
        .steps([leaves_a_message(""), resumes("anna"), is_refused(user("bob"))]),
        row("", "a session may be anybody's", owned(SessionOwner::Anybody))
            .steps([leaves_a_message("anna"), resumes("bob")]),
        row("", "a session that has expired is nobody's", Lab::new(1)).steps([
            opens("phone", brief),
            sends("phone", ["cut"]),
            waits_ms(2000),
            opens("phone", user("eve")),
        ]),
        row("", "the owner outlives a crash", Lab::durable(2)).steps([
            leaves_a_message("anna"),
            crashes(),
            is_refused(user("eve")),
            is_refused(user("")),
            resumes("anna"),
        ]),
    ]);
}

fn is_denied(event: &Event) -> bool {
    matches!(event, Event::Dropped { reason: Dropped::Denied, count: 1, .. })
}

fn hides() -> Step {
    rules(everyone([(Permission::ReadWrite, "#"), (Permission::Deny, "t/hidden")]))
}

fn is_back_to<const N: usize>(packets: [&str; N]) -> Step {
    all([connects("reader", kept), gets("reader", packets)])
}

#[test]
fn rules_of_now() {
    run([
        row("", "queued messages are judged again", [Lab::new(1), Lab::durable(1)]).steps([
            sends("reader", ["kept", "subscribe t/# qos1", "cut"]),
            sends(
                "writer",
                ["publish t/1 1 qos1", "publish t/hidden x qos1", "publish t/2 2 qos1"],
            ),
            hides(),
            is_back_to(["connack present", "publish t/1 1 qos1 id1", "publish t/2 2 qos1 id2"]),
            counts(|m| &m.dropped_denied, 1),
            passes(2),
            reports(is_denied, 1),
            // It is gone for good: with the old rules it does not come back.
            rules(Access::open()),
            sends("reader", ["cut", "kept"]),
            reads("reader", [1, 2]),
        ]),
        row("", "what is in flight is not sent again without the right", Lab::new(1)).steps([
            sends("reader", ["kept", "subscribe t/# qos2"]),
            sends("writer", ["publish t/hidden 1 qos1", "publish t/hidden 2 qos2", "pubrel 1"]),
            sends("writer", ["publish t/ok 3 qos1"]),
            reads("reader", [1, 2, 3]),
            sends("reader", ["cut"]),
            hides(),
            // The packet id of QoS 2 is let go of in order, so that the client can use it again.
            is_back_to(["connack present", "pubrel 2", "publish t/ok 3 qos1 id3 dup"]),
            sends("reader", ["pubcomp 2", "puback 3"]),
            is_open("reader"),
            counts(|m| &m.dropped_denied, 2),
        ]),
        row("", "what waits for the journal is judged when it leaves", Lab::durable(1)).steps([
            sends("reader", ["kept", "subscribe t/# qos2"]),
            posts("writer", "publish t/hidden x qos2 id1"),
            posts("writer", "publish t/ok y qos2 id2"),
            // It has its packet id, and waits until the disk has that, too.
            carries_mail(),
            gets("reader", []),
            hides(),
            settles(),
            reads("reader", ["y"]),
            counts(|m| &m.dropped_denied, 1),
        ]),
        row("", "what was let go of does not come again after a crash", Lab::durable(1)).steps([
            sends("reader", ["kept", "subscribe t/# qos2"]),
            sends("writer", ["publish t/hidden 1 qos2", "pubrel 1"]),
            reads("reader", [1]),
            sends("reader", ["cut"]),
            hides(),
            // The client may use the packet id for something new from here on.
            is_back_to(["connack present", "pubrel 1"]),
            crashes(),
            is_back_to(["connack present", "pubrel 1"]),
            asks("reader", "pubcomp 1", []),
            is_open("reader"),
        ]),
    ]);
}
