//! Damage that no crash explains: it is refused, never cut off in silence, and never believed.

mod model;

use model::{IDENTITY, Model, SEGMENT_BYTES, replay};
use proptest::prelude::*;
use storage::testing::{Crash, Rng};
use storage::{
    HeaderRead, Level, Position, Recovery, Refusal, Scan, SegmentFile, SegmentHeader, Settings,
    Status, Survey,
};

fn settings() -> Settings {
    Settings::with_segment_bytes(SEGMENT_BYTES)
}

/// A journal of a few segments, closed in order.
fn closed_journal(seed: u64) -> Model {
    let mut rng = Rng::new(seed);
    let mut model = Model::new(seed, settings());
    model.settle();
    for _ in 0..300 {
        model.random_append(&mut rng);
        model.turn();
        model.step();
        model.tick(1);
    }
    model.journal.close();
    while model.journal.status() != Status::Closed {
        model.turn();
        model.step();
    }
    model
}

/// Where each segment's batches end, and the last `synced` that any batch states.
fn chain_ends(model: &Model) -> (Vec<Position>, Position) {
    let (mut ends, mut synced, mut oldest) = (Vec::<Position>::new(), Position::default(), 0);
    for file in model.disk.files() {
        let content = model.disk.content(file.number);
        let HeaderRead::Valid(header) = SegmentHeader::decode(content) else { continue };
        if header.number == file.number {
            let mut scan = Scan::new(content, &header);
            while let Some(batch) = scan.next_batch() {
                synced = synced.max(batch.header.synced);
                oldest = oldest.max(batch.header.oldest);
            }
            ends.push(scan.position());
        }
    }
    // What is before the oldest segment only waits to be removed.
    ends.retain(|end| end.segment() >= oldest);
    (ends, synced)
}

/// What `quelea log repair` does: the end of what is left.
fn repair(model: &mut Model) -> Position {
    let mut survey = Survey::default();
    for file in model.disk.files() {
        survey.on_segment(file.number, model.disk.content(file.number));
    }
    let repair = survey.finish(IDENTITY);
    for file in model.disk.files().iter().filter(|file| file.number > repair.last_kept) {
        model.disk.remove(file.number);
    }
    model.disk.put_manifest(Some(repair.manifest.file()));
    let Some(at) = repair.end else { return Position::default() };
    let mut content = model.disk.content(at.segment()).to_vec();
    content.resize(at.offset() as usize, 0);
    content.extend_from_slice(&repair.write);
    model.disk.put(at.segment(), content);
    at
}

#[test]
fn any_bit_flipped_in_durable_data_is_refused() {
    let mut rng = Rng::new(1);
    for seed in 0..40 {
        let mut model = closed_journal(seed);
        let (ends, synced) = chain_ends(&model);
        assert!(ends.len() > 1);
        for _ in 0..60 {
            let end = ends[rng.below(ends.len() as u64) as usize];
            // The first sector of the header block counts up to the end of the header.
            let byte = match rng.below(10) {
                0 => rng.below(64) as u32,
                _ => 4096 + rng.below(u64::from(end.offset() - 4096)) as u32,
            };
            if Position::new(end.segment(), byte) >= synced {
                continue;
            }
            let bit = rng.below(8) as u8;
            model.disk.flip_bit(end.segment(), byte as usize, bit);
            let refused = replay(&model.disk, &model.settings).err();
            let place = (end.segment(), byte, bit);
            match refused {
                Some(Refusal::Damaged(at)) => assert!(at <= Position::new(place.0, place.1)),
                Some(Refusal::Lost { found, durable }) => {
                    let turned = Position::new(place.0, place.1);
                    assert!(found <= turned && turned < durable);
                }
                Some(Refusal::Header(segment)) => assert!(segment == place.0 && byte < 64),
                other => panic!("seed {seed} at {place:?}: {other:?}"),
            }
            model.disk.flip_bit(end.segment(), byte as usize, bit);
        }
        assert!(replay(&model.disk, &model.settings).is_ok());
    }
}

#[test]
fn a_missing_segment_is_named() {
    let mut model = closed_journal(3);
    let (ends, _) = chain_ends(&model);
    let middle = ends[ends.len() - 2].segment();
    model.disk.remove(middle);
    assert_eq!(replay(&model.disk, &model.settings).err(), Some(Refusal::Missing(middle)));
}

#[test]
fn a_segment_of_another_journal_is_refused() {
    let mut model = closed_journal(4);
    let other = closed_journal(5);
    let (ends, _) = chain_ends(&model);
    let number = ends[ends.len() - 2].segment();
    model.disk.put(number, other.disk.content(number).to_vec());
    // Both have the same identity in this test, so it is the chain that gives it away.
    assert!(matches!(
        replay(&model.disk, &model.settings).err(),
        Some(Refusal::Damaged(_) | Refusal::Header(_))
    ));
}

#[test]
fn quiet_time_makes_the_last_records_damage_proof() {
    let mut model = Model::new(1, settings());
    model.settle();
    model.append(1, Some(100), Level::Fsync);
    model.settle();
    let end = model.journal.synced_upto();
    let last = end.offset() as usize - 1;
    // At once, damage to the last batch cannot be told from a torn tail.
    model.disk.flip_bit(1, last, 0);
    assert!(replay(&model.disk, &model.settings).is_ok());
    model.disk.flip_bit(1, last, 0);
    model.tick(5000);
    model.settle();
    model.disk.flip_bit(1, last, 0);
    assert!(matches!(replay(&model.disk, &model.settings).err(), Some(Refusal::Damaged(_))));
}

#[test]
fn a_repaired_journal_opens_with_what_was_before_the_damage() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut model = closed_journal(seed);
        let (ends, _) = chain_ends(&model);
        let end = ends[rng.below(ends.len() as u64 - 1) as usize];
        let byte = 4096 + rng.below(u64::from(end.offset() - 4096)) as usize;
        model.disk.flip_bit(end.segment(), byte, 0);
        assert!(replay(&model.disk, &model.settings).is_err());

        let at = repair(&mut model);
        assert!(at <= Position::new(end.segment(), byte as u32));
        let (recovered, _) = replay(&model.disk, &model.settings).unwrap();
        assert_eq!(recovered.report.cut, None, "seed {seed}");
    }
}

#[test]
fn files_that_no_journal_wrote_are_refused() {
    let files = |number, bytes| vec![SegmentFile { number, bytes }];
    for impossible in [files(0, 0), files(u32::MAX, 0), files(1, 1 << 40)] {
        assert!(matches!(
            Recovery::new((0, 1), &settings(), impossible, None),
            Err(Refusal::Impossible(_))
        ));
    }
}

#[test]
fn a_crash_after_damage_was_cut_by_repair_is_survived() {
    let mut model = closed_journal(7);
    let (ends, _) = chain_ends(&model);
    let last = ends[ends.len() - 1];
    model.disk.flip_bit(last.segment(), last.offset() as usize - 1, 0);
    repair(&mut model);
    model.recover(Crash::Kill).unwrap();
    model.settle();
    assert!(model.append(1, Some(1), Level::Fsync));
}

/// A journal of some segments after a crash, with what a start finds in it.
fn crashed_journal(seed: u64) -> Option<Model> {
    let mut rng = Rng::new(seed);
    let mut model = Model::new(seed, settings());
    for _ in 0..rng.below(400) {
        model.random_append(&mut rng);
        model.turn();
        model.step();
        model.tick(rng.below(20));
    }
    let crash = if rng.chance(50) { Crash::Power } else { Crash::Kill };
    model.crash(crash);
    replay(&model.disk, &model.settings).ok().map(|_| model)
}

/// The records of a start.
fn records(model: &Model) -> Result<Vec<(Position, Vec<u8>)>, Refusal> {
    let mut found = Vec::new();
    model.disk.read_back((1, 4), &model.settings, &mut |record, _| {
        found.push((record.position, record.bytes.to_vec()));
    })?;
    Ok(found)
}

/// The highest segment with records or a header of its own.
fn newest(model: &Model) -> Option<u32> {
    let begun = |number: &u32| {
        matches!(
            SegmentHeader::decode(model.disk.content(*number)),
            HeaderRead::Valid(header) if header.number == *number
        )
    };
    model.disk.files().iter().map(|file| file.number).filter(begun).max()
}

/// Does something to the newest segment of many journals, after crashes and orderly ends; a start
/// must refuse, or find all that it found before.
fn is_never_lost_unnoticed(what: fn(&mut Model, u32, &mut Rng), plant: fn(&mut Model)) -> String {
    let mut refused = 0;
    for seed in 0..90 {
        let mut rng = Rng::new(seed);
        let model = if seed % 3 == 0 { Some(closed_journal(seed)) } else { crashed_journal(seed) };
        let Some(mut model) = model else { continue };
        plant(&mut model);
        let Some(number) = newest(&model) else { continue };
        let before = records(&model).expect("a sound log");
        what(&mut model, number, &mut rng);
        match records(&model) {
            Err(refusal) => {
                assert!(refusal.is_loss(), "seed {seed}: {refusal}");
                refused += 1;
                repair(&mut model);
                let after = records(&model).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
                // Segments that the lost end had done with may be needed again.
                let first = before.first().map_or(Position::default(), |(at, _)| *at);
                let after = after.iter().filter(|(at, _)| *at >= first);
                assert!(after.zip(&before).all(|(one, other)| one == other), "seed {seed}");
            }
            Ok(after) if after == before => {}
            Ok(after) => return format!("seed {seed}: {} of {}", after.len(), before.len()),
        }
    }
    assert!(refused > 40, "{refused}");
    String::new()
}

fn remove(model: &mut Model, number: u32, _: &mut Rng) {
    model.disk.remove(number);
}

#[test]
fn a_newest_segment_that_is_gone_is_refused() {
    assert_eq!(is_never_lost_unnoticed(remove, |_| {}), "");
}

fn remove_all(model: &mut Model, number: u32, _: &mut Rng) {
    for file in model.disk.files().iter().filter(|file| file.number >= number) {
        model.disk.remove(file.number);
    }
}

#[test]
fn a_newest_segment_and_its_spares_that_are_gone_are_refused() {
    assert_eq!(is_never_lost_unnoticed(remove_all, |_| {}), "");
}

#[test]
fn a_newest_segment_that_is_cut_short_is_refused() {
    let cut = |model: &mut Model, number: u32, rng: &mut Rng| {
        let mut content = model.disk.content(number).to_vec();
        content.truncate(rng.below(content.len() as u64) as usize);
        model.disk.put(number, content);
    };
    assert_eq!(is_never_lost_unnoticed(cut, |_| {}), "");
}

#[test]
fn a_newest_segment_that_is_empty_is_refused() {
    let empty = |model: &mut Model, number: u32, _: &mut Rng| model.disk.put(number, Vec::new());
    assert_eq!(is_never_lost_unnoticed(empty, |_| {}), "");
}

#[test]
fn a_manifest_that_is_gone_is_refused() {
    let forget = |model: &mut Model, _: u32, _: &mut Rng| model.disk.put_manifest(None);
    let also = |model: &mut Model, number: u32, _: &mut Rng| {
        model.disk.put_manifest(None);
        model.disk.remove(number);
    };
    assert_eq!(is_never_lost_unnoticed(forget, |_| {}), "");
    assert!(
        !is_never_lost_unnoticed(also, |_| {}).is_empty(),
        "what a log of one file cannot know"
    );
}

#[test]
fn planted_older_manifest_is_noticed() {
    let old = |model: &mut Model| {
        let mut young = Model::new(1, settings());
        young.settle();
        model.disk.put_manifest(young.journal.manifest());
    };
    assert!(!is_never_lost_unnoticed(remove_all, old).is_empty());
}

#[test]
fn a_newest_segment_that_is_an_older_copy_is_refused() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(seed, settings());
        model.settle();
        let mut copies = Vec::new();
        for _ in 0..rng.below(300) {
            model.random_append(&mut rng);
            model.turn();
            model.step();
            model.tick(10);
            if let (true, Some(number)) = (rng.chance(5), newest(&model)) {
                copies.push((number, model.disk.content(number).to_vec()));
            }
        }
        model.journal.close();
        while model.journal.status() != Status::Closed {
            model.turn();
            model.step();
        }
        let (before, number) = (records(&model).unwrap(), newest(&model).unwrap());
        for (_, copy) in copies.iter().filter(|(copied, _)| *copied == number) {
            let content = model.disk.content(number).to_vec();
            model.disk.put(number, copy.clone());
            assert!(records(&model).is_err(), "seed {seed}");
            model.disk.put(number, content);
        }
        assert_eq!(records(&model).unwrap(), before);
    }
}

#[test]
fn what_was_durable_a_minute_ago_is_missed_after_a_crash_too() {
    let mut model = Model::new(1, settings());
    model.settle();
    let copy = model.disk.content(1).to_vec();
    model.append(1, Some(100), Level::Fsync);
    model.settle();
    model.tick(60_000);
    model.settle();
    model.crash(Crash::Kill);
    model.disk.put(1, copy);
    assert!(matches!(records(&model), Err(Refusal::Lost { .. })));
}

#[test]
fn a_journal_without_a_manifest_opens_and_gets_one() {
    // As the program left it that knew of none: a journal whose first manifest is not written yet.
    let mut model = Model::new(1, settings());
    while model.disk.content(1).get(4096).is_none_or(|byte| *byte == 0) {
        model.turn();
        model.step();
    }
    assert!(model.disk.manifest().is_none());
    model.crash(Crash::Kill);
    model.recover(Crash::Kill).unwrap();
    model.settle();
    assert!(model.append(1, Some(1), Level::Fsync));
    model.settle();
    assert!(model.disk.manifest().is_some());
    assert_eq!(records(&model).unwrap().len(), 1);
}

#[test]
fn a_gap_before_a_file_that_is_not_used_is_refused() {
    let mut model = closed_journal(6);
    let number = newest(&model).unwrap();
    let spare = vec![0; SEGMENT_BYTES as usize];
    model.disk.put(number + 1, spare.clone());
    assert!(records(&model).is_ok());
    model.disk.put(number + 3, spare);
    assert_eq!(records(&model).err(), Some(Refusal::Missing(number + 2)));
}

#[test]
fn a_start_reads_what_is_used_and_little_more() {
    let settings = Settings { segment_bytes: 16 << 20, ..Settings::with_segment_bytes(1 << 20) };
    let mut model = Model::new(1, settings);
    model.settle();
    for key in 0..3 {
        model.append(key, Some(1000), Level::Fsync);
    }
    model.settle();
    let read = |model: &Model| {
        let (files, manifest) = (model.disk.files(), model.disk.manifest());
        let mut recovery = Recovery::new((1, 4), &model.settings, files, manifest).unwrap();
        let mut read = 0;
        while let Some(want) = recovery.wants() {
            let (begin, bytes) = (want.offset as usize, want.bytes as usize);
            let content = &model.disk.content(want.segment)[begin..begin + bytes];
            recovery.on_bytes(content, &mut |_, _| {}).unwrap();
            read += bytes as u64;
        }
        read
    };
    model.crash(Crash::Kill);
    let used = model.journal.stats().used_bytes;
    assert!(read(&model) < used + 256 * 1024, "{} for {used}", read(&model));
    model.recover(Crash::Kill).unwrap();
    model.settle();
    for key in 0..3000 {
        model.append(key, Some(10_000), Level::Fsync);
        model.turn();
        model.step();
        model.step();
    }
    model.settle();
    model.crash(Crash::Kill);
    let used = model.journal.stats().used_bytes;
    assert!(used > 16 << 20, "{used}");
    assert!(read(&model) < used + (8 << 20), "{} for {used}", read(&model));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Overwrites anywhere give a clean start or a clean refusal, and never a record that was not
    /// appended (the replay of the model checks each record's bytes).
    #[test]
    fn any_overwrite_gives_a_start_or_a_refusal(
        seed in 0_u64..20,
        writes in prop::collection::vec(
            (0_usize..8, 0_usize..65_536, prop::collection::vec(any::<u8>(), 1..600)),
            1..6,
        ),
    ) {
        let mut model = closed_journal(seed);
        let files = model.disk.files();
        for (which, offset, bytes) in writes {
            let number = files[which % files.len()].number;
            let mut content = model.disk.content(number).to_vec();
            let end = content.len().min(offset + bytes.len());
            content[offset..end].copy_from_slice(&bytes[..end - offset]);
            model.disk.put(number, content);
        }
        let _ = replay(&model.disk, &model.settings);
    }
}
