use std::sync::Arc;

use storage::{CommandId, Outcome, Step};

use super::*;

const ORIGIN: Origin = Origin { cluster: *b"cluster of tests", epoch: 1, writer: 7 };

const SPAN_BYTES_MIN: u64 = 256 << 10;

/// A writer behind its claim, which is message 1, and what it was asked to do.
struct Bench {
    writer: Writer,
    asked: Vec<(RequestId, Request)>,
    done: Vec<(u64, Option<FaultKind>)>,
    /// The shard of each of them.
    done_of: Vec<ShardId>,
    /// Of the last one.
    steps_done: usize,
    stored: Vec<(Sequence, ShardId)>,
    renewed: Vec<(ShardId, u32)>,
    now_ms: u64,
}

impl Bench {
    /// One commit of 100 bytes fills a message.
    fn new() -> Self {
        Self::with(1, 200)
    }

    fn of(shards: usize) -> Self {
        Self::with(shards, MESSAGE_BYTES_MAX)
    }

    fn with(shards: usize, message_bytes_max: usize) -> Self {
        Self::spaced(shards, message_bytes_max, 0)
    }

    fn spaced(shards: usize, message_bytes_max: usize, append_interval_ms: u64) -> Self {
        let limits = WriterLimits {
            message_bytes_max,
            span_bytes_min: SPAN_BYTES_MIN,
            stream_bytes_max: u64::MAX,
            append_interval_ms,
        };
        let logs = vec![ShardLog::default(); shards];
        Self {
            writer: Writer::new(ORIGIN, 1, logs, limits),
            asked: Vec::new(),
            done: Vec::new(),
            done_of: Vec::new(),
            steps_done: 0,
            stored: Vec::new(),
            renewed: Vec::new(),
            now_ms: 1000,
        }
    }

    fn commit(&mut self, id: u64, offset: u32) {
        self.commit_of(0, id, (1, offset), 100, id == 1);
    }

    fn commit_of(
        &mut self,
        shard: ShardId,
        id: u64,
        (segment, offset): (u32, u32),
        len: usize,
        resume: bool,
    ) {
        let bytes = Arc::new(vec![id as u8; len]);
        let steps = vec![Step::Write { segment, offset, bytes }, Step::Sync { segment }];
        self.submit(shard, Command::Commit { id: CommandId(id), steps, resume });
    }

    fn submit(&mut self, shard: ShardId, command: Command) {
        let mut wishes = Vec::new();
        self.writer.submit(shard, command, (0, self.now_ms), &mut wishes);
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
                Wish::Done(shard, completion) => {
                    let Outcome::Committed { steps_done, fault } = completion.outcome else {
                        panic!();
                    };
                    self.steps_done = steps_done;
                    self.done.push((completion.id.0, fault.map(|fault| fault.kind)));
                    self.done_of.push(shard);
                }
                Wish::Store(sequence, portion) => self.stored.push((sequence, portion.shard)),
                Wish::Renew(shard, segment) => self.renewed.push((shard, segment)),
                Wish::Background(..) => {}
            }
        }
    }

    /// What the appends under way hold, in their order: shard and bytes.
    fn under_way(&self) -> Vec<Vec<(ShardId, usize)>> {
        let mut under_way = Vec::new();
        for (_, request) in &self.asked {
            let Request::Append { body, .. } = request else { continue };
            let Ok(wire::Content::Pieces(pieces)) = wire::decode(body).map(|it| it.content) else {
                panic!();
            };
            let bytes_of = |piece: &wire::Piece<'_>| match piece {
                wire::Piece::Write { bytes, .. } | wire::Piece::Manifest { bytes, .. } => {
                    bytes.len()
                }
            };
            let pieces = pieces.iter().map(|(shard, piece)| (*shard, bytes_of(piece)));
            under_way.push(pieces.collect());
        }
        under_way
    }

    /// Answers the oldest append: it is stored behind the last one.
    fn store(&mut self) {
        let Some((_, Request::Append { after, .. })) = self.asked.first() else { panic!() };
        self.answer(Answer::Appended(after + 1));
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

/// A journal takes a sync that failed for the end of its disk.
#[test]
fn a_commit_that_begins_with_a_sync_is_refused_behind_it() {
    let mut bench = Bench::new();
    let bytes = Arc::new(vec![1; 100]);
    let write = Step::Write { segment: 1, offset: 0, bytes };
    let steps = vec![Step::Sync { segment: 1 }, write, Step::Sync { segment: 1 }];
    bench.submit(0, Command::Commit { id: CommandId(1), steps, resume: true });
    bench.answer(no_space());
    assert_eq!((&bench.done[..], bench.steps_done), (&[(1, Some(FaultKind::NoSpace))][..], 1));
}

#[test]
fn what_comes_while_appends_are_under_way_shares_the_next_message() {
    let mut bench = Bench::of(3);
    bench.commit_of(0, 1, (1, 0), 100, true);
    bench.commit_of(1, 1, (1, 0), 100, true);
    for (shard, id, offset) in [(2, 1, 0), (0, 2, 100), (1, 2, 100)] {
        bench.commit_of(shard, id, (1, offset), 100, id == 1);
    }
    assert_eq!(bench.under_way(), [[(0, 100)]]);
    bench.store();
    assert_eq!((&bench.done[..], &bench.done_of[..]), (&[(1, None)][..], &[0][..]));
    assert_eq!(bench.under_way(), [[(1, 100), (1, 100), (2, 100), (0, 100)]]);
    bench.store();
    assert_eq!(bench.done.len(), 5);
    assert_eq!(bench.done_of, [0, 0, 1, 1, 2], "each by its shard");
    assert_eq!(bench.stored, [(2, 0), (3, 1), (3, 2), (3, 0)]);
}

#[test]
fn messages_that_carry_little_begin_some_time_apart() {
    let mut bench = Bench::spaced(2, 2_000, 5);
    bench.commit_of(0, 1, (1, 0), 100, true);
    assert_eq!(bench.under_way().len(), 1, "it was alone");
    bench.commit_of(1, 1, (1, 0), 100, true);
    bench.store();
    assert!(bench.under_way().is_empty(), "others may come");
    assert_eq!(bench.writer.next_deadline(), Some(bench.now_ms + 2));
    bench.now_ms += 1;
    bench.commit_of(1, 2, (1, 100), 100, false);
    bench.now_ms += 2;
    bench.work();
    assert_eq!(bench.under_way(), [[(1, 100), (1, 100)]]);
    assert_eq!(bench.writer.next_deadline(), None);
    bench.commit_of(0, 2, (1, 100), 100, false);
    bench.commit_of(0, 3, (1, 200), 1_000, false);
    assert_eq!(bench.under_way().len(), 2, "half a message does not wait");
    bench.store();
    bench.store();
    assert_eq!(bench.done.len(), 5);
}

#[test]
fn a_large_commit_does_not_hold_up_another_shard() {
    let mut bench = Bench::of(2);
    bench.commit_of(0, 1, (1, 0), 1 << 20, true);
    bench.commit_of(1, 1, (1, 0), 100, true);
    bench.store();
    let [second, third] = &bench.under_way()[..] else { panic!() };
    assert!(second.iter().all(|(shard, _)| *shard == 0), "it was packed before");
    assert_eq!(third[0], (1, 100));
    assert_eq!(third[1].0, 0, "what is left is for the other");
    bench.store();
    bench.store();
    assert_eq!((&bench.done[..], &bench.done_of[..]), (&[(1, None)][..], &[1][..]));
}

#[test]
fn two_large_commits_take_turns() {
    let mut bench = Bench::of(2);
    bench.commit_of(0, 1, (1, 0), 1 << 20, true);
    bench.commit_of(1, 1, (1, 0), 1 << 20, true);
    let mut first = Vec::new();
    while let Some(message) = bench.under_way().first() {
        first.push(message[0].0);
        bench.store();
    }
    let turns = first[2..].windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(turns + 4 >= first[2..].len(), "{first:?}");
}

#[test]
fn an_append_that_is_refused_refuses_what_it_holds_of_each_shard_and_nothing_else() {
    let mut bench = Bench::with(3, 400);
    bench.commit_of(0, 1, (1, 0), 100, true);
    bench.commit_of(1, 1, (1, 0), 100, true);
    bench.commit_of(0, 2, (1, 100), 100, false);
    bench.commit_of(2, 1, (1, 0), 100, true);
    assert_eq!(bench.under_way(), [&[(0, 100)][..], &[(1, 100), (0, 100)]]);
    bench.answer(no_space());
    bench.answer(Answer::WrongSequence);
    assert_eq!(bench.done, [(1, Some(FaultKind::NoSpace)), (2, Some(FaultKind::Skipped))]);
    assert_eq!(bench.done_of, [0, 0]);
    assert_eq!(bench.under_way(), [[(2, 100), (1, 100)]], "of the other shards all is sent again");
    bench.commit_of(0, 3, (1, 200), 100, false);
    assert_eq!(bench.done[2..], [(3, Some(FaultKind::Skipped))], "until it resumes");
    bench.commit_of(1, 2, (1, 100), 100, false);
    bench.commit_of(0, 4, (1, 0), 100, true);
    bench.store();
    bench.store();
    assert_eq!(bench.done[3..], [(1, None), (1, None), (4, None), (2, None)]);
    assert_eq!(bench.done_of[3..], [1, 2, 0, 1]);
}

/// What was begun has to be ended: the rest of the message can be refused.
#[test]
fn a_refused_append_refuses_no_shard_that_goes_on_with_a_step_in_it() {
    let mut bench = Bench::of(2);
    bench.commit_of(0, 1, (1, 0), 100_000, true);
    bench.commit_of(1, 1, (1, 0), 100, true);
    bench.commit_of(1, 2, (1, 100), 100, false);
    bench.store();
    assert!(bench.writer.cursor(0).is_none(), "it ends within a step");
    assert!(bench.writer.cursor(1).is_some());
    assert_eq!(bench.under_way().concat().len(), 1, "the rest of the step");
    bench.answer(no_space());
    assert_eq!(bench.done, [], "the front message holds nothing else");
    bench.now_ms += RETRY_MS;
    bench.work();
    bench.answer(no_space());
    let refused = [(1, Some(FaultKind::NoSpace)), (2, Some(FaultKind::Skipped))];
    assert_eq!((&bench.done[..], &bench.done_of[..]), (&refused[..], &[1, 1][..]));
    assert!(bench.writer.cursor(0).is_none(), "the stream is still full");
    bench.commit_of(1, 3, (1, 0), 100, true);
    bench.answer(no_space());
    bench.now_ms += RETRY_MS;
    bench.work();
    bench.answer(no_space());
    assert_eq!(bench.done[2..], [(3, Some(FaultKind::NoSpace))]);
    bench.now_ms += RETRY_MS;
    bench.work();
    bench.store();
    assert_eq!((bench.done[3], bench.done_of[3]), ((1, None), 0));
    assert!(bench.writer.cursor(0).is_some());
}

#[test]
fn a_shard_in_the_midst_of_a_step_keeps_its_rest_when_another_one_is_refused_beside_it() {
    let mut bench = Bench::of(2);
    bench.commit_of(0, 1, (1, 0), 230_000, true);
    bench.commit_of(1, 1, (1, 0), 100, true);
    bench.store();
    bench.store();
    let [third, fourth] = &bench.under_way()[..] else { panic!() };
    assert_eq!(third.iter().map(|(shard, _)| *shard).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(fourth.len(), 1);
    bench.answer(no_space());
    bench.answer(Answer::WrongSequence);
    assert_eq!(bench.done, [(1, Some(FaultKind::NoSpace))]);
    assert_eq!(bench.done_of, [1]);
    let [again, rest] = &bench.under_way()[..] else { panic!() };
    assert_eq!((again.len(), rest.len()), (1, 1), "the rest of the step goes alone");
    bench.store();
    bench.store();
    assert_eq!((bench.done[1], bench.done_of[1]), ((1, None), 0));
}

#[test]
fn the_stream_is_purged_up_to_the_oldest_segment_of_all_shards() {
    let purge_of = |bench: &mut Bench| {
        let place = bench.asked.iter().position(|(_, it)| matches!(it, Request::Purge { .. }))?;
        let (id, Request::Purge { before }) = bench.asked.remove(place) else { panic!() };
        let mut wishes = Vec::new();
        bench.writer.on_answer(id, Answer::Purged, bench.now_ms, &mut wishes);
        bench.grant(wishes);
        Some(before)
    };
    let mut bench = Bench::of(3);
    // Messages 2 to 5. The third shard writes nothing.
    for (shard, id, segment) in [(0, 1, 1), (1, 1, 1), (0, 2, 2), (0, 3, 3)] {
        bench.commit_of(shard, id, (segment, 0), 100, id == 1);
        bench.store();
    }
    bench.submit(0, Command::Delete { id: CommandId(8), segment: 1 });
    assert_eq!(purge_of(&mut bench), Some(3), "of the neighbour");
    bench.submit(0, Command::Delete { id: CommandId(9), segment: 2 });
    assert_eq!(purge_of(&mut bench), None);
    bench.commit_of(1, 2, (2, 0), 100, false);
    bench.store();
    bench.submit(1, Command::Recycle { id: CommandId(10), from: 1, to: 3 });
    assert_eq!(purge_of(&mut bench), Some(5));
}

#[test]
fn a_shard_that_keeps_too_much_of_the_stream_is_asked_to_renew_it() {
    let mut bench = Bench::of(2);
    bench.commit_of(1, 1, (7, 0), 100, true);
    bench.store();
    let span = SPAN_BYTES_MIN;
    let (mut id, mut written) = (0, 0);
    while bench.renewed.is_empty() {
        id += 1;
        assert!(written <= span + 20_000, "{written} bytes");
        bench.commit_of(0, id, (2 + id as u32, 0), 10_000, id == 1);
        written += 10_000;
        bench.store();
        bench.writer.shards[0].log.forget_below(2 + id as u32);
    }
    assert!(written > span, "{written} bytes");
    assert_eq!(bench.renewed, [(1, 7)]);
    bench.commit_of(0, id + 1, (2 + id as u32, 10_000), 10_000, false);
    bench.store();
    assert_eq!(bench.renewed, [(1, 7)], "once");
}
