//! Damage to the medium while no broker runs: a start has to refuse it, or find all the same.

use broker::ShardId;
use storage::{HeaderRead, Manifest, Position, SegmentHeader};

use crate::disks::{Disks, Found, disk_of};

/// What some damage did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The start is refused.
    Refused,
    /// Nothing that matters was hit.
    Harmless,
    /// It cannot be told from a torn tail: nothing says that what was there had been durable.
    Tail,
}

impl Disks {
    /// Turns a bit of the medium over, looks at what a start would make of it, and turns it back.
    /// Err: it would begin with less than there was.
    pub(crate) fn flip_a_bit(&mut self) -> Result<Damage, String> {
        let shard = self.random.below(self.shards().len());
        let files = self.disk(shard).files();
        if files.is_empty() {
            return Ok(Damage::Harmless);
        }
        let number = files[self.random.below(files.len())].number;
        let written = self.disk(shard).content(number).iter().rposition(|byte| *byte != 0);
        let byte = self.random.below(written.map_or(1, |last| last + 1));
        let bit = self.random.below(8) as u8;
        let (before, report) =
            self.survey(shard as ShardId).map_err(|refusal| refusal.to_string())?;
        self.disk(shard).flip_bit(number, byte, bit);
        let after = self.survey(shard as ShardId);
        self.disk(shard).flip_bit(number, byte, bit);
        let Ok((after, _)) = after else { return Ok(Damage::Refused) };
        let is_newest = before.last().is_some_and(|(at, ..)| at.segment() == number);
        let may_lose = !report.sealed && is_newest;
        self.judge(shard, &before, &after, may_lose).map_err(|lost| {
            format!("bit {bit} of byte {byte} of segment {number} of shard {shard} turns: {lost}")
        })
    }

    /// Takes the newest segment away, or its end, or puts an older copy in its place, or takes the
    /// manifest; looks at what a start would make of it, and undoes it.
    /// Err: it would begin with less than there was.
    pub(crate) fn lose_the_end(&mut self) -> Result<Damage, String> {
        let shard = self.random.below(self.shards().len());
        let Some(newest) = self.newest(shard) else { return Ok(Damage::Harmless) };
        let before = self.survey(shard as ShardId).map_err(|refusal| refusal.to_string())?.0;
        let (what, place) = (self.random.below(5), self.random.next() as usize);
        let earlier = self.copies[shard].take();
        let mut disk = disk_of(&self.disks, shard);
        let kept: Vec<(u32, Vec<u8>)> = (disk.files().iter().filter(|file| file.number >= newest))
            .map(|file| (file.number, disk.content(file.number).to_vec()))
            .collect();
        let manifest = disk.manifest().map(<[u8]>::to_vec);
        let content = disk.content(newest).to_vec();
        match (what, earlier) {
            (0, _) => disk.remove(newest),
            (1, _) => kept.iter().for_each(|(number, _)| disk.remove(*number)),
            (2, _) => disk.put(newest, content[..place % content.len()].to_vec()),
            (3, Some((number, copy))) if number == newest => disk.put(number, copy),
            _ => disk.put_manifest(None),
        }
        drop(disk);
        let after = self.survey(shard as ShardId);
        self.disk(shard).put_manifest(manifest);
        self.copies[shard] = Some((newest, content));
        for (number, content) in kept {
            self.disk(shard).put(number, content);
        }
        let Ok((after, _)) = after else { return Ok(Damage::Refused) };
        self.judge(shard, &before, &after, what == 3).map_err(|lost| {
            format!("segment {newest} of shard {shard}, the newest, is harmed ({what}): {lost}")
        })
    }

    /// The newest segment that was begun.
    fn newest(&self, shard: usize) -> Option<u32> {
        let disk = self.disk(shard);
        let begun = |number: &u32| {
            matches!(
                SegmentHeader::decode(disk.content(*number)),
                HeaderRead::Valid(header) if header.number == *number
            )
        };
        disk.files().iter().map(|file| file.number).filter(begun).max()
    }

    /// What a start finds after damage, against what it finds without. `may_lose`: what is missing
    /// at the end is excused where nobody had stated that it was durable.
    fn judge(
        &self,
        shard: usize,
        before: &[Found],
        after: &[Found],
        may_lose: bool,
    ) -> Result<Damage, String> {
        let Some((first, ..)) = before.first() else { return Ok(Damage::Harmless) };
        // Without the word that older segments are void those are read, too, before all others;
        // it stands in a batch of the end, which may be lost itself.
        let void = after.iter().take_while(|(at, ..)| at < first).count();
        let after = &after[void..];
        if after == before {
            return Ok(Damage::Harmless);
        }
        let manifest = self.disk(shard).manifest().and_then(|file| Manifest::read(file).ok());
        let stated = manifest.map_or(Position::default(), |manifest| manifest.end);
        let first_lost = before.get(after.len()).map(|(at, ..)| *at);
        match may_lose && before.starts_with(after) && first_lost >= Some(stated) {
            true => Ok(Damage::Tail),
            false => Err(format!(
                "{} records of {} are found, and nobody is told",
                after.len(),
                before.len()
            )),
        }
    }
}
