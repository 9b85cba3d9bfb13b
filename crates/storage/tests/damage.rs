//! Damage that no crash explains: it is refused, never cut off in silence, and never believed.

mod model;

use model::{Model, SEGMENT_BYTES, replay};
use proptest::prelude::*;
use storage::testing::{Crash, Rng};
use storage::{
    HeaderRead, Level, Position, Recovery, Refusal, Scan, SegmentFile, SegmentHeader, Settings,
    Status, Survey,
};

fn settings() -> Settings {
    Settings::with_segment_bytes(SEGMENT_BYTES)
}

/// A log of a few segments, closed in order.
fn closed_log(seed: u64) -> Model {
    let mut rng = Rng::new(seed);
    let mut model = Model::new(seed, settings());
    model.settle();
    for _ in 0..300 {
        model.random_append(&mut rng);
        model.turn();
        model.step();
        model.tick(1);
    }
    model.log.close();
    while model.log.status() != Status::Closed {
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

#[test]
fn any_bit_flipped_in_durable_data_is_refused() {
    let mut rng = Rng::new(1);
    for seed in 0..40 {
        let mut model = closed_log(seed);
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
    let mut model = closed_log(3);
    let (ends, _) = chain_ends(&model);
    let middle = ends[ends.len() - 2].segment();
    model.disk.remove(middle);
    assert_eq!(replay(&model.disk, &model.settings).err(), Some(Refusal::Missing(middle)));
}

#[test]
fn a_segment_of_another_log_is_refused() {
    let mut model = closed_log(4);
    let other = closed_log(5);
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
    let end = model.log.synced_upto();
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
fn a_repaired_log_opens_with_what_was_before_the_damage() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut model = closed_log(seed);
        let (ends, _) = chain_ends(&model);
        let end = ends[rng.below(ends.len() as u64 - 1) as usize];
        let byte = 4096 + rng.below(u64::from(end.offset() - 4096)) as usize;
        model.disk.flip_bit(end.segment(), byte, 0);
        assert!(replay(&model.disk, &model.settings).is_err());

        let mut survey = Survey::default();
        for file in model.disk.files() {
            survey.on_segment(file.number, model.disk.content(file.number));
        }
        let repair = survey.finish();
        let at = repair.end.unwrap();
        assert!(at <= Position::new(end.segment(), byte as u32));
        for file in model.disk.files().iter().filter(|file| file.number > repair.last_kept) {
            model.disk.remove(file.number);
        }
        let mut content = model.disk.content(at.segment()).to_vec();
        content.truncate(at.offset() as usize);
        content.extend_from_slice(&repair.write);
        model.disk.put(at.segment(), content);
        let (recovered, _) = replay(&model.disk, &model.settings).unwrap();
        assert_eq!(recovered.report.cut, None, "seed {seed}");
    }
}

#[test]
fn files_that_no_log_wrote_are_refused() {
    let files = |number, bytes| vec![SegmentFile { number, bytes }];
    for impossible in [files(0, 0), files(u32::MAX, 0), files(1, 1 << 40)] {
        assert!(matches!(
            Recovery::new((0, 1), &settings(), impossible),
            Err(Refusal::Impossible(_))
        ));
    }
}

#[test]
fn a_crash_after_damage_was_cut_by_repair_is_survived() {
    let mut model = closed_log(7);
    let (ends, _) = chain_ends(&model);
    let last = ends[ends.len() - 1];
    // The seal itself: no record is in it, so this is a cut and no refusal.
    model.disk.flip_bit(last.segment(), last.offset() as usize - 1, 0);
    model.recover(Crash::Kill).unwrap();
    model.settle();
    assert!(model.append(1, Some(1), Level::Fsync));
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
        let mut model = closed_log(seed);
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
