//! A writer whose appends are refused, lost and late: single histories, one answer after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use cluster::{
    Answer, Body, Cursor, Effect, Identity, LeaseAnswer, LeaseRequest, MESSAGE_BYTES_MAX, Node,
    Request, RequestId, Role, Settings, Timing,
};
use storage::{Command, CommandId, FaultKind, Outcome, Step};

/// A node of one shard that is active, with an empty stream behind its claim.
struct Lab {
    node: Node,
    now_ms: u64,
    asked: VecDeque<(RequestId, Request)>,
    done: Vec<(CommandId, Outcome)>,
    role: Role,
    /// Portions for the local copy.
    applied: usize,
    /// Another node has the lease.
    is_taken: bool,
    commits: u64,
}

fn settings(identity: Identity) -> Settings {
    Settings {
        cluster: [7; 16],
        identity,
        seed: 5,
        timing: Timing::default(),
        message_bytes_max: MESSAGE_BYTES_MAX,
        span_bytes_min: 1 << 20,
        stream_bytes_max: u64::MAX,
        append_interval_ms: 0,
    }
}

impl Lab {
    fn standby() -> Self {
        let identity = Identity { node: "n".into(), instance: 1, address: String::new() };
        let settings = settings(identity);
        Self {
            node: Node::new(settings, vec![Cursor::default()], 0),
            now_ms: 0,
            asked: VecDeque::new(),
            done: Vec::new(),
            role: Role::Standby,
            applied: 0,
            is_taken: false,
            commits: 0,
        }
    }

    fn active() -> Self {
        let mut lab = Self::standby();
        for _ in 0..40 {
            lab.pass(100);
            let Some((id, request)) = lab.asked.pop_front() else { continue };
            match request {
                Request::Ends => lab.answer(id, Answer::Ends { first: 1, last: 0 }),
                Request::Append { after: 0, body } => {
                    lab.answer(id, Answer::Appended(1));
                    lab.node.on_message(1, &body, lab.now_ms);
                    lab.take_effects();
                }
                request => panic!("asked for {request:?}"),
            }
            if matches!(lab.role, Role::Active { .. }) {
                return lab;
            }
        }
        panic!("the node did not become active");
    }

    fn pass(&mut self, millis: u64) {
        self.now_ms += millis;
        self.node.on_tick(self.now_ms, 0);
        self.take_effects();
    }

    fn answer(&mut self, id: RequestId, answer: Answer) {
        self.node.on_answer(id, answer, self.now_ms);
        self.take_effects();
    }

    fn take_effects(&mut self) {
        let mut effects = Vec::new();
        self.node.take_effects(&mut effects);
        let is_done = effects.is_empty();
        for effect in effects {
            match effect {
                Effect::Ask(id, request) => self.asked.push_back((id, request)),
                Effect::AskLease(id, request) => {
                    let answer = match request {
                        _ if self.is_taken => LeaseAnswer::Unknown("lost".to_owned()),
                        LeaseRequest::Read => LeaseAnswer::Missing,
                        LeaseRequest::Write { expected, .. } => LeaseAnswer::Written(expected + 1),
                    };
                    self.node.on_lease_answer(id, answer, self.now_ms);
                }
                Effect::Done(_, completion) => self.done.push((completion.id, completion.outcome)),
                Effect::Apply(..) => self.applied += 1,
                Effect::Role(role) => self.role = role,
                _ => {}
            }
        }
        if !is_done {
            self.take_effects();
        }
    }

    fn commit(&mut self, bytes: &[u8]) {
        self.commits += 1;
        let bytes = Arc::new(bytes.to_vec());
        let steps = vec![Step::Write { segment: 1, offset: 0, bytes }];
        let command = Command::Commit { id: CommandId(self.commits), steps, resume: true };
        self.node.submit(0, command, 0, self.now_ms);
        self.node.on_tick(self.now_ms, 0);
        self.take_effects();
    }

    /// The next request, which has to be an append.
    fn append(&mut self) -> (RequestId, u64, Body) {
        match self.asked.pop_front() {
            Some((id, Request::Append { after, body })) => (id, after, body),
            other => panic!("asked for {other:?}"),
        }
    }

    /// Answers the questions that settle an append of unknown fate: the stream ends at `last`.
    fn settle(&mut self, last: u64) {
        let Some((id, Request::Message { sequence })) = self.asked.pop_front() else {
            panic!("nothing was looked for");
        };
        assert!(sequence > last);
        self.answer(id, Answer::Message(None));
        let Some((id, Request::Ends)) = self.asked.pop_front() else {
            panic!("the end was not asked for");
        };
        self.answer(id, Answer::Ends { first: 1, last });
        self.pass(1);
    }

    fn faults(&self) -> Vec<(u64, FaultKind)> {
        let fault = |(id, outcome): &(CommandId, Outcome)| match outcome {
            Outcome::Committed { fault: Some(fault), .. } => Some((id.0, fault.kind)),
            _ => None,
        };
        self.done.iter().filter_map(fault).collect()
    }
}

fn no_space() -> Answer {
    Answer::NoSpace("full".to_owned())
}

#[test]
fn a_message_with_a_number_of_this_writer_and_other_bytes_ends_it() {
    let mut other = Lab::active();
    other.commit(b"two");
    let (_, _, other) = other.append();
    let mut lab = Lab::active();
    lab.commit(b"one");
    let (id, _, _) = lab.append();
    lab.answer(id, Answer::Unknown("late".to_owned()));
    lab.pass(1);
    let Some((id, Request::Message { .. })) = lab.asked.pop_front() else { panic!() };
    lab.answer(id, Answer::Message(Some(other)));
    lab.pass(1);
    assert!(matches!(lab.role, Role::Ended(_)), "{:?}", lab.role);
    assert!(lab.faults().iter().all(|(_, kind)| *kind == FaultKind::Fenced));
}

/// What was begun cannot be taken back, so it is tried again: one at a time, and not without rest.
#[test]
fn a_write_whose_beginning_is_stored_is_sent_again_at_intervals() {
    let mut lab = Lab::active();
    lab.commit(&vec![1; 100_000]);
    let (first, _, _) = lab.append();
    let (second, _, rest) = lab.append();
    lab.answer(first, Answer::Appended(2));
    lab.answer(second, no_space());
    lab.pass(1);
    assert!(lab.asked.is_empty(), "not at once");
    lab.pass(1000);
    for _ in 0..3 {
        let (id, after, again) = lab.append();
        assert_eq!((after, &again), (2, &rest));
        assert!(lab.asked.is_empty(), "one at a time");
        lab.answer(id, no_space());
        lab.pass(1);
        assert!(lab.asked.is_empty(), "not at once");
        lab.pass(1000);
    }
    let (id, _, _) = lab.append();
    lab.answer(id, Answer::Appended(3));
    lab.pass(1);
    assert_eq!(lab.faults(), []);
    assert_eq!(lab.done.len(), 1);
}

/// A deposed leader says so, or an engine that lost its data: nothing is sent on that ground.
#[test]
fn a_stream_that_is_shorter_than_acknowledged_is_asked_again_and_said() {
    let mut lab = Lab::active();
    lab.commit(b"one");
    let (id, _, _) = lab.append();
    lab.answer(id, Answer::Unknown("late".to_owned()));
    lab.pass(1);
    lab.settle(0);
    assert!(lab.asked.is_empty());
    let said = lab.node.streams().next().and_then(|stream| stream.unavailable).unwrap();
    assert!(said.contains("the stream ends at message 0"), "{said}");
    lab.pass(1000);
    lab.settle(1);
    lab.append();
}

/// Answers all questions for the end of the stream, and passes so long.
fn say_end(lab: &mut Lab, last: u64, millis: u64) {
    for _ in 0..millis / 100 {
        lab.pass(100);
        while let Some((id, request)) = lab.asked.pop_front() {
            assert!(matches!(request, Request::Ends), "asked for {request:?}");
            lab.answer(id, Answer::Ends { first: 1, last });
        }
    }
}

#[test]
fn a_standby_that_falls_far_behind_has_to_catch_up_again() {
    let has_caught_up = |lab: &Lab| lab.node.streams().all(|stream| stream.has_caught_up);
    let mut lab = Lab::standby();
    lab.is_taken = true;
    say_end(&mut lab, 0, 1000);
    assert!(has_caught_up(&lab));
    say_end(&mut lab, 10, 5000);
    assert!(has_caught_up(&lab), "a little behind is what all are");
    say_end(&mut lab, 10_000, 5000);
    assert!(!has_caught_up(&lab));
}

/// A leader that was deposed may say once or twice that the stream is shorter.
#[test]
fn a_standby_that_has_read_more_than_the_stream_has_is_not_to_be_active() {
    let fault = |lab: &Lab| lab.node.streams().find_map(|stream| stream.fault);
    let cursor = Cursor { last: 50, epoch: 1, writer: 1, number: 49, ..Cursor::default() };
    let mut lab = Lab::standby();
    let identity = Identity { node: "n".into(), instance: 1, address: String::new() };
    let settings = settings(identity);
    lab.node = Node::new(settings, vec![cursor], 0);
    lab.is_taken = true;
    say_end(&mut lab, 40, 1000);
    assert_eq!(fault(&lab), None);
    say_end(&mut lab, 50, 1000);
    assert_eq!(fault(&lab), None);
    say_end(&mut lab, 40, 5000);
    assert!(fault(&lab).unwrap().contains("the engine lost messages"));
}

/// Messages come faster than answers.
#[test]
fn a_standby_takes_an_answer_for_what_it_was_when_it_was_asked() {
    let mut writer = Lab::active();
    let mut lab = Lab::standby();
    lab.is_taken = true;
    for read in 1..=8 {
        writer.commit(b"one");
        let (id, _, body) = writer.append();
        writer.answer(id, Answer::Appended(read + 1));
        let id = loop {
            lab.pass(100);
            if let Some((id, Request::Ends)) = lab.asked.pop_front() {
                break id;
            }
        };
        lab.node.on_message(read, &body, lab.now_ms);
        lab.answer(id, Answer::Ends { first: 1, last: read - 1 });
        assert_eq!(lab.node.streams().find_map(|stream| stream.fault), None);
    }
    lab.pass(1);
    assert_eq!(lab.applied, 8);
    assert!(lab.node.streams().all(|stream| stream.has_caught_up));
}

/// It would keep the lease from nodes that can read it.
#[test]
fn a_node_that_cannot_read_the_rest_of_a_stream_gives_the_lease_up() {
    let mut lab = Lab::standby();
    while !matches!(lab.role, Role::Claiming { .. }) {
        lab.pass(100);
        while let Some((id, request)) = lab.asked.pop_front() {
            if matches!(request, Request::Ends) {
                lab.answer(id, Answer::Ends { first: 1, last: 0 });
            }
        }
    }
    lab.node.on_message(1, &b"no message of this program".as_slice().into(), lab.now_ms);
    lab.pass(1);
    assert!(matches!(lab.role, Role::Ended(_)), "{:?}", lab.role);
}

/// What follows would be written behind a hole.
#[test]
fn a_node_whose_copy_cannot_be_written_takes_no_more_of_the_stream() {
    let mut writer = Lab::active();
    writer.commit(b"one");
    let (id, _, first) = writer.append();
    writer.answer(id, Answer::Appended(2));
    writer.commit(b"two");
    let (_, _, second) = writer.append();
    let mut lab = Lab::standby();
    lab.node.on_message(1, &first, 0);
    lab.take_effects();
    assert_eq!(lab.applied, 1);
    lab.node.on_local_fault("no space");
    lab.node.on_message(2, &second, 0);
    lab.take_effects();
    assert_eq!(lab.applied, 1);
    assert!(matches!(lab.role, Role::Ended(_)), "{:?}", lab.role);
}
