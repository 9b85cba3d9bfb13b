use super::*;

const ORIGIN: Origin = Origin { cluster: *b"cluster of tests", epoch: 1, writer: 7 };

/// A writer behind its claim, which is message 1, and what it was asked to do.
struct Bench {
    writer: Writer,
    asked: Vec<(RequestId, Request)>,
    done: Vec<(u64, Option<FaultKind>)>,
    now_ms: u64,
}

impl Bench {
    fn new() -> Self {
        let writer = Writer::new(ORIGIN, 1, BTreeMap::new());
        Self { writer, asked: Vec::new(), done: Vec::new(), now_ms: 1000 }
    }

    fn commit(&mut self, id: u64, offset: u32) {
        let bytes = Arc::new(vec![id as u8; 100]);
        let steps = vec![Step::Write { segment: 1, offset, bytes }, Step::Sync { segment: 1 }];
        let mut wishes = Vec::new();
        let command = Command::Commit { id: CommandId(id), steps, resume: id == 1 };
        self.writer.submit(command, &mut wishes);
        self.grant(wishes);
        self.work();
    }

    fn work(&mut self) {
        let mut wishes = Vec::new();
        self.writer.work(self.now_ms, 0, &mut wishes);
        self.grant(wishes);
    }

    fn grant(&mut self, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Ask(id, request) => self.asked.push((id, request)),
                Wish::Done(completion) => {
                    let Outcome::Committed { fault, .. } = completion.outcome else { panic!() };
                    self.done.push((completion.id.0, fault.map(|fault| fault.kind)));
                }
                Wish::Store(..) | Wish::Background(_) => {}
            }
        }
    }

    /// Answers the oldest request.
    fn answer(&mut self, answer: Answer) {
        let (id, _) = self.asked.remove(0);
        let mut wishes = Vec::new();
        self.writer.on_answer(id, answer, self.now_ms, &mut wishes);
        self.grant(wishes);
        self.work();
    }

    /// An append that may come late, and the look that finds nothing in its place.
    fn lose_append(&mut self) {
        self.answer(Answer::Unknown("no answer".to_owned()));
        assert!(matches!(self.asked[..], [(_, Request::Message { sequence: 2 })]));
        self.answer(Answer::Message(None));
        self.answer(Answer::Ends { first: 1, last: 1 });
    }
}

fn no_space() -> Answer {
    Answer::NoSpace("maximum bytes exceeded".to_owned())
}

#[test]
fn a_commit_that_finds_no_space_is_refused() {
    let mut bench = Bench::new();
    bench.commit(1, 0);
    bench.answer(no_space());
    assert_eq!(bench.done, [(1, Some(FaultKind::NoSpace))]);
    assert!(bench.asked.is_empty());
}

#[test]
fn two_appends_that_find_no_space_refuse_both_commits() {
    for second in [no_space(), Answer::WrongSequence] {
        let mut bench = Bench::new();
        bench.commit(1, 0);
        bench.commit(2, 100);
        bench.answer(no_space());
        assert_eq!(bench.done, [], "the second append may still be stored");
        bench.answer(second);
        assert_eq!(bench.done, [(1, Some(FaultKind::NoSpace)), (2, Some(FaultKind::Skipped))]);
        assert!(bench.asked.is_empty());
    }
}

/// The commit would come back in other messages under the same number, and the late append would
/// be taken for one of them.
#[test]
fn an_append_that_may_come_late_is_not_refused() {
    for refusal in [no_space(), Answer::Unavailable("no leader".to_owned())] {
        let mut bench = Bench::new();
        bench.commit(1, 0);
        bench.lose_append();
        assert!(matches!(bench.asked[..], [(_, Request::Append { after: 1, .. })]));
        bench.answer(refusal);
        assert_eq!(bench.done, []);
        let [(_, Request::Message { sequence: 2 })] = bench.asked[..] else { panic!() };
        bench.answer(Answer::Message(None));
        bench.answer(Answer::Ends { first: 1, last: 1 });
        assert!(bench.asked.is_empty(), "an engine without space is not asked without a pause");
        bench.now_ms += RETRY_MS;
        bench.work();
        assert!(matches!(bench.asked[..], [(_, Request::Append { after: 1, .. })]));
        bench.answer(Answer::Appended(2));
        assert_eq!(bench.done, [(1, None)]);
    }
}
