//! A journal that is followed write by write is the journal that recovery finds in its files.
//!
//! `STORAGE_SEEDS` says how many histories (default 150) and `STORAGE_SEED` picks one.

mod model;

use std::collections::BTreeMap;

use model::{IDENTITY, Model, SEGMENT_BYTES, Seen, live, seeds, settings};
use storage::testing::{Crash, Rng, SimDisk, Written};
use storage::{
    Follow, Identity, Journal, Level, Position, Recovered, Refusal, Stamp, Status, manifest_file,
};

const OWNER: (u16, u16) = (1, 4);

fn close(model: &mut Model) {
    model.journal.close();
    while model.journal.status() != Status::Closed {
        model.turn();
        model.step();
        model.tick(10);
    }
}

/// A journal of several lives, and everything that was written to it, split at random.
fn history(seed: u64, lives: u64, tears: bool) -> (Model, Vec<Written>) {
    let mut rng = Rng::new(seed);
    let mut model = Model::new(rng.next_u64(), settings());
    model.disk.record_writes();
    let mut events = Vec::new();
    for life in 0..lives {
        if life > 0 {
            // What is on the medium is not the question here: nothing is lost of a stream.
            model.recover(Crash::Kill).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        live(&mut model, &mut rng, 1500);
        if !tears || rng.chance(30) {
            model.settle();
            close(&mut model);
        }
        model.crash(Crash::Kill);
    }
    for written in model.disk.writes().expect("nothing was lost") {
        split(written.clone(), &mut rng, &mut events);
    }
    (model, events)
}

fn split(written: Written, rng: &mut Rng, events: &mut Vec<Written>) {
    let Written::Segment { segment, mut offset, bytes } = written else {
        events.push(written);
        return;
    };
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let most = rest.len() as u64;
        let count = if rng.chance(50) { most } else { 1 + rng.below(most.min(6000)) } as usize;
        let (piece, behind) = rest.split_at(count);
        events.push(Written::Segment { segment, offset, bytes: piece.to_vec() });
        offset += count as u32;
        rest = behind;
    }
}

/// A standby: what it follows, and what the records said.
struct Standby {
    follow: Follow,
    seen: Seen,
}

impl Standby {
    fn new() -> Self {
        Self { follow: Follow::new(OWNER, &settings()), seen: Seen::default() }
    }

    fn on_event(&mut self, event: &Written) -> Result<(), Refusal> {
        let Self { follow, seen } = self;
        match event {
            Written::NewWriter => follow.on_new_writer(),
            Written::Manifest { offset, bytes } => {
                follow.on_manifest(*offset, bytes)?;
            }
            Written::Segment { segment, offset, bytes } => {
                let mut sink = |record: storage::Record<'_>, ledger: &mut storage::Ledger| {
                    seen.on_record(record, ledger);
                };
                follow.on_write(*segment, *offset, bytes, &mut sink)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> (String, Seen) {
        self.follow.check().expect("the log is whole");
        (essence(&self.follow.finish(IDENTITY)), self.seen)
    }
}

/// All that recovery found, except which files can be used again or removed.
fn essence(recovered: &Recovered) -> String {
    let whole = format!("{recovered:?}");
    let (front, rest) = whole.split_once("space: ").expect("a field of this name");
    let (_, back) = rest.split_once("manifest: ").expect("a field of this name");
    format!("{front}{back}")
}

/// The local copy that a standby keeps.
#[derive(Default)]
struct LocalCopy {
    files: BTreeMap<u32, Vec<u8>>,
    manifest: Option<Vec<u8>>,
}

impl LocalCopy {
    fn apply(&mut self, event: &Written) {
        match event {
            Written::NewWriter => {}
            Written::Manifest { offset, bytes } => match &mut self.manifest {
                Some(file) => file[*offset as usize..][..bytes.len()].copy_from_slice(bytes),
                None => self.manifest = Some(manifest_file(*offset, bytes)),
            },
            Written::Segment { segment, offset, bytes } => {
                let file = self.files.entry(*segment);
                let file = file.or_insert_with(|| vec![0; SEGMENT_BYTES as usize]);
                file[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    fn disk(&self) -> SimDisk {
        let mut disk = SimDisk::new(0);
        for (number, content) in &self.files {
            disk.put(*number, content.clone());
        }
        disk.put_manifest(self.manifest.clone());
        disk
    }
}

#[test]
fn what_was_followed_is_what_recovery_finds() {
    let (mut reclaimed, mut torn) = (0, 0);
    for seed in seeds(150) {
        let (model, events) = history(seed, 1 + seed % 4, true);
        let mut standby = Standby::new();
        for event in &events {
            standby.on_event(event).unwrap_or_else(|why| panic!("seed {seed}: {event:?}: {why}"));
            let oldest = standby.follow.oldest();
            assert!(standby.follow.ledger().oldest().is_none_or(|first| first == oldest));
        }
        reclaimed += u64::from(standby.follow.oldest() > 1);
        torn += u64::from(standby.follow.report().cut.is_some());
        let (found, seen) = model::replay(&model.disk, &model.settings).unwrap();
        let (followed, followed_seen) = standby.finish();
        assert_eq!(followed, essence(&found), "seed {seed}");
        assert_eq!(followed_seen.state, seen.state, "seed {seed}");
    }
    assert!(reclaimed > 50 && torn > 5 || seeds(150).end < 150, "{reclaimed} {torn}");
}

#[test]
fn a_standby_goes_on_behind_its_local_copy() {
    for seed in seeds(150) {
        let (model, events) = history(seed, 1 + seed % 4, true);
        let mut rng = Rng::new(!seed);
        let at = rng.below(events.len() as u64) as usize;
        let (mut local, mut first) = (LocalCopy::default(), Standby::new());
        let mut ends = Vec::new();
        for event in &events[..at] {
            ends.push(first.follow.end());
            local.apply(event);
            first.on_event(event).unwrap();
            let oldest = first.follow.oldest();
            if rng.chance(20) {
                local.files.retain(|&number, _| number >= oldest);
            }
        }
        ends.push(first.follow.end());
        let (recovered, seen) = model::replay(&local.disk(), &settings())
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let follow = Follow::resume(recovered, OWNER, &settings());
        assert_eq!((follow.end(), follow.oldest()), (first.follow.end(), first.follow.oldest()));
        let mut standby = Standby { follow, seen };
        let from = ends.iter().position(|&end| end == standby.follow.end()).unwrap();
        let is_copied = |event: &&Written| match event {
            Written::Segment { segment, offset, .. } => Position::new(*segment, *offset) < ends[at],
            _ => false,
        };
        // The rest of a header whose front was enough.
        for event in events[from..].iter().skip_while(is_copied) {
            standby.on_event(event).unwrap_or_else(|why| panic!("seed {seed}: {event:?}: {why}"));
        }
        let (found, seen) = model::replay(&model.disk, &model.settings).unwrap();
        let (followed, followed_seen) = standby.finish();
        assert_eq!(followed, essence(&found), "seed {seed}");
        assert_eq!(followed_seen.state, seen.state, "seed {seed}");
    }
}

#[test]
fn a_standby_that_took_over_goes_on_with_the_journal() {
    for seed in 0..20 {
        let (mut model, events) = history(seed, 2, true);
        let mut standby = Standby::new();
        events.iter().for_each(|event| standby.on_event(event).unwrap());
        let (_, seen) = model::replay(&model.disk, &model.settings).unwrap();
        assert_eq!(standby.seen.state, seen.state);
        model.recover(Crash::Kill).unwrap();
        // No file is at hand but those of the copy.
        for file in model.disk.files() {
            if file.number > standby.follow.end().segment() || file.number < standby.follow.oldest()
            {
                model.disk.remove(file.number);
            }
        }
        model.journal = Journal::open(standby.follow.finish(IDENTITY), settings());
        model.settle();
        assert!(model.append(1, Some(100), Level::Fsync), "seed {seed}");
        model.settle();
        model.crash(Crash::Kill);
        model.recover(Crash::Kill).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// What comes of a journal of which the event at an index was changed.
fn follow_changed(events: &[Written], change: impl Fn(usize, &Written) -> Vec<Written>) -> Outcome {
    let mut standby = Standby::new();
    for (index, event) in events.iter().enumerate() {
        for event in change(index, event) {
            if let Err(refusal) = standby.on_event(&event) {
                return Outcome::Refused(refusal);
            }
        }
    }
    Outcome::Followed(standby.follow.end())
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Refused(Refusal),
    Followed(Position),
}

fn is_write(event: &Written) -> bool {
    matches!(event, Written::Segment { .. })
}

#[test]
fn a_write_that_is_skipped_repeated_or_changed_is_refused_by_name() {
    for seed in 0..40 {
        let (_, events) = history(seed, 1 + seed % 3, false);
        let mut rng = Rng::new(seed);
        let writes: Vec<usize> = (0..events.len()).filter(|&at| is_write(&events[at])).collect();
        let last = writes.len() - 1;
        for _ in 0..6 {
            let at = writes[rng.below(last as u64) as usize];
            let outcome = follow_changed(&events, |index, event| match index == at {
                true => Vec::new(),
                false => vec![event.clone()],
            });
            let name = |outcome: &Outcome| match outcome {
                Outcome::Refused(Refusal::NotNext { .. } | Refusal::NoBeginning(_)) => true,
                // The end that a manifest or the next header states is not there.
                Outcome::Refused(Refusal::Lost { .. } | Refusal::Changed(_)) => true,
                _ => false,
            };
            assert!(name(&outcome), "seed {seed}, without {at}: {outcome:?}");

            let at = writes[rng.below(last as u64 + 1) as usize];
            let outcome = follow_changed(&events, |index, event| match index == at {
                true => vec![event.clone(), event.clone()],
                false => vec![event.clone()],
            });
            let is_named = matches!(outcome, Outcome::Refused(Refusal::NotNext { .. }));
            assert!(is_named, "seed {seed}, twice {at}: {outcome:?}");

            let bit = rng.next_u64() as usize;
            let outcome = follow_changed(&events, |index, event| match (index == at, event) {
                (true, Written::Segment { segment, offset, bytes }) => {
                    let mut bytes = bytes.clone();
                    let bit = bit % (bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    let (segment, offset) = (*segment, *offset);
                    vec![Written::Segment { segment, offset, bytes }]
                }
                _ => vec![event.clone()],
            });
            let is_named = matches!(
                outcome,
                // What breaks off is noticed with the next write, or by a manifest.
                Outcome::Refused(
                    Refusal::Changed(_) | Refusal::NotNext { .. } | Refusal::Lost { .. }
                )
            );
            assert!(is_named, "seed {seed}, changed {at}: {outcome:?}");
        }
    }
}

#[test]
fn a_manifest_of_another_journal_or_time_is_refused_by_name() {
    let (_, events) = history(7, 2, false);
    let mut standby = Standby::new();
    let mut manifests = Vec::new();
    for event in &events {
        standby.on_event(event).unwrap();
        if let Written::Manifest { offset, bytes } = event {
            manifests.push((*offset, bytes.clone()));
        }
    }
    let (offset, bytes) = manifests[0].clone();
    let refusal = standby.follow.on_manifest(offset, &bytes).unwrap_err();
    assert!(matches!(refusal, Refusal::ManifestOrder { number: 1, .. }), "{refusal:?}");
    let mut flipped = bytes.clone();
    flipped[50] ^= 1;
    assert_eq!(standby.follow.on_manifest(offset, &flipped), Err(Refusal::Manifest));
    assert_eq!(standby.follow.on_manifest(u32::MAX, &bytes), Err(Refusal::Manifest));
    assert_eq!(standby.follow.on_manifest(offset + 4096, &bytes), Err(Refusal::Manifest));

    let stranger = Identity { id: [9; 16], ..IDENTITY };
    let (offset, bytes) = storage::Manifest::of_nothing(stranger).slot();
    assert_eq!(standby.follow.on_manifest(offset, &bytes), Err(Refusal::ForeignManifest));

    let newest = storage::Manifest::read(&{
        let (offset, bytes) = manifests.last().unwrap();
        manifest_file(*offset, bytes)
    });
    let stamp = Stamp { directory: [1; 16], start: 1, token: 2, is_finished: false };
    let newest = newest.unwrap().stamped(stamp);
    let too_far = storage::Manifest { end: Position::new(9999, 4096), ..newest };
    let (offset, bytes) = too_far.slot();
    let refusal = standby.follow.on_manifest(offset, &bytes).unwrap_err();
    assert!(matches!(refusal, Refusal::Lost { .. }), "{refusal:?}");
    let replaced = storage::Manifest { end: standby.follow.end(), previous: 1, ..newest };
    let (offset, bytes) = replaced.slot();
    let refusal = standby.follow.on_manifest(offset, &bytes).unwrap_err();
    assert!(matches!(refusal, Refusal::Replaced(_)), "{refusal:?}");
    let (offset, bytes) = newest.slot();
    standby.follow.on_manifest(offset, &bytes).unwrap();
}

#[test]
fn a_journal_of_which_the_first_segments_are_gone_is_not_whole_before_that_is_stated() {
    let mut seen_gap = false;
    for seed in 0..20 {
        let (model, events) = history(seed, 3, false);
        // A stream whose first messages were purged begins with the header of a segment.
        let (_, oldest) = {
            let mut standby = Standby::new();
            events.iter().for_each(|event| standby.on_event(event).unwrap());
            ((), standby.follow.oldest())
        };
        let from = events.iter().position(
            |event| matches!(event, Written::Segment { segment, .. } if *segment == oldest),
        );
        let mut standby = Standby::new();
        for event in &events[from.unwrap()..] {
            standby.on_event(event).unwrap();
            seen_gap |= matches!(standby.follow.check(), Err(Refusal::Missing(_)));
        }
        let (found, seen) = model::replay(&model.disk, &model.settings).unwrap();
        let (followed, followed_seen) = standby.finish();
        assert_eq!(followed, essence(&found), "seed {seed}");
        assert_eq!(followed_seen.state, seen.state, "seed {seed}");
    }
    assert!(seen_gap);
}

#[test]
fn a_journal_of_another_shard_or_identity_is_refused_by_name() {
    let (_, events) = history(3, 1, false);
    let mut follow = Follow::new((2, 4), &settings());
    let header = events.iter().find(|event| is_write(event)).unwrap();
    let Written::Segment { segment, offset, bytes } = header else { unreachable!() };
    let refusal = follow.on_write(*segment, *offset, bytes, &mut |_, _| {}).unwrap_err();
    assert!(matches!(refusal, Refusal::Shard { expected: 2, .. }), "{refusal:?}");

    let mut follow = Follow::new(OWNER, &settings());
    let refusal = follow.on_write(*segment, 4096, bytes, &mut |_, _| {}).unwrap_err();
    assert_eq!(refusal, Refusal::NoBeginning(Position::new(*segment, 4096)));
    let stranger = Identity { id: [9; 16], ..IDENTITY };
    let (slot, manifest) = storage::Manifest::of_nothing(stranger).slot();
    follow.on_manifest(slot, &manifest).unwrap();
    let refusal = follow.on_write(*segment, *offset, bytes, &mut |_, _| {}).unwrap_err();
    assert_eq!(refusal, Refusal::Foreign(*segment));
}

#[test]
fn a_journal_of_which_nothing_was_seen_is_a_new_one() {
    let follow = Follow::new(OWNER, &settings());
    assert!(follow.report().is_new);
    assert_eq!((follow.end(), follow.oldest()), (Position::default(), 0));
    let mut journal = Journal::open(follow.finish(IDENTITY), settings());
    let mut commands = Vec::new();
    journal.take_commands(&mut commands, 0);
    assert!(matches!(commands[..], [storage::Command::Create { segment: 1, .. }]));
}

/// A medium that many journals share may begin in the midst of a segment of this one.
#[test]
fn what_is_left_of_segments_that_are_gone_is_skipped() {
    let mut checked = 0;
    for seed in 0..40 {
        let (_, events) = history(seed, 2, false);
        let stated = |event: &Written| match event {
            Written::Segment { segment, offset: 0, .. } => Some(*segment),
            _ => None,
        };
        let follow_from = |from: usize| {
            let mut follow = Follow::new(OWNER, &settings());
            let mut seen = Seen::default();
            for event in &events[from..] {
                match event {
                    Written::Segment { segment, offset, .. }
                        if follow.is_before_beginning(*offset) =>
                    {
                        follow.skip(*segment, *offset);
                    }
                    Written::Segment { segment, offset, bytes } => {
                        let mut sink =
                            |record: storage::Record<'_>, ledger: &mut storage::Ledger| {
                                seen.on_record(record, ledger);
                            };
                        follow.on_write(*segment, *offset, bytes, &mut sink).unwrap();
                    }
                    Written::Manifest { offset, bytes } => {
                        follow.on_manifest(*offset, bytes).unwrap();
                    }
                    Written::NewWriter => follow.on_new_writer(),
                }
            }
            follow
        };
        let oldest = follow_from(0).oldest();
        let begins = events.iter().position(|event| stated(event) == Some(oldest)).unwrap();
        let whole = follow_from(begins);
        for back in 1..begins.min(30) {
            let found = follow_from(begins - back);
            assert!(!found.is_within_batch(), "it has begun since");
            found.check().unwrap_or_else(|why| panic!("seed {seed}, {back} writes before: {why}"));
            assert_eq!((found.end(), found.oldest()), (whole.end(), oldest));
            checked += 1;
        }
        let last = events.iter().rposition(|event| stated(event).is_some()).unwrap();
        if last + 1 < events.len() && events[last + 1..].iter().any(is_write) {
            let rest = follow_from(last + 1);
            assert!(rest.check().is_err(), "seed {seed}: it has no beginning");
            assert!(rest.is_within_batch(), "no position is noted");
        }
    }
    assert!(checked > 100, "{checked}");
}
