//! What a node must have in common with its cluster before it takes part.
//!
//! - The [`Record`] names the cluster, and fixes what no configuration changes.
//! - The [`Mark`] beside a local copy says which cluster it is a copy of.
//! - [`Facts`] that nodes send each other show settings and versions that differ.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::sequencer::Cursor;
use crate::wire::{ClusterId, VERSION};

/// Of [`Record`]s of clusters with one cell.
pub const FORMAT: u32 = 2;

/// Of clusters with several cells, and of these cells. An older program refuses it.
pub const CELLS_FORMAT: u32 = 3;

/// The most cells of a cluster.
pub const CELLS_MAX: u16 = 56;

/// The format of clusters that have a stream for each shard: [`Record::read_old`].
const OLD_FORMAT: u32 = 1;

/// What to do with a cluster of the old format.
pub(crate) const CARRY_OVER: &str = "stop its nodes, then use `quelea cluster export` and `quelea \
cluster import` as in \"Carry over a cluster of format 1\" of docs/use/cluster.md";

/// Starts of other nodes that are remembered; then the same is found again.
const COMPARED_MAX: usize = 256;

/// The key that names a cluster. `quelea cluster init` writes it once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub id: ClusterId,
    /// The configuration of a node does not change it.
    pub shards: u16,
    pub segment_bytes: u32,
    pub extent: Extent,
}

/// What a [`Record`] is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Extent {
    /// A cluster with one cell: what it has is under its own name.
    #[default]
    One,
    /// A cluster with several cells, each with the [`Record::shards`] and with a record of its own.
    Many {
        cells: u16,
        /// Of the hash that chooses the bits of interest.
        seed: u64,
    },
    /// A cell of a cluster with several. Its id is another one than the cluster's and than those of
    /// other cells, so a copy of one is never taken for a copy of another.
    Cell { cluster: ClusterId, cell: u16 },
}

/// The same, as JSON.
#[derive(Serialize, Deserialize)]
struct WrittenRecord {
    format: u32,
    /// 32 hexadecimal digits.
    id: String,
    shards: u16,
    segment_bytes: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cells: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// The id of the cluster that it is a cell of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cell: Option<u16>,
}

/// What every format states.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Why a program cannot take part in a cluster.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    #[error("the key 'cluster' of the bucket is malformed: {0}")]
    Malformed(String),
    #[error(
        "the cluster has format {0}, this program knows formats up to {CELLS_FORMAT}: use a newer \
         one"
    )]
    Format(u32),
    #[error("the cluster has format {OLD_FORMAT}, with a stream for each shard: {CARRY_OVER}")]
    Old,
}

impl Record {
    /// Reads the value of the key.
    ///
    /// # Errors
    ///
    /// When it is no record, or one of another format.
    pub fn read(value: &[u8]) -> Result<Self, RecordError> {
        Self::read_format(value, &[FORMAT, CELLS_FORMAT])
    }

    /// Reads the value of the key of a cluster of format 1, whose streams can be exported.
    ///
    /// # Errors
    ///
    /// When it is no record, or one of another format.
    pub fn read_old(value: &[u8]) -> Result<Self, RecordError> {
        Self::read_format(value, &[OLD_FORMAT])
    }

    fn read_format(value: &[u8], wanted: &[u32]) -> Result<Self, RecordError> {
        let malformed = |error: serde_json::Error| RecordError::Malformed(error.to_string());
        // A later format may state other things.
        let Format { format } = serde_json::from_slice(value).map_err(malformed)?;
        if !wanted.contains(&format) {
            let is_old = format == OLD_FORMAT;
            return Err(if is_old { RecordError::Old } else { RecordError::Format(format) });
        }
        let written: WrittenRecord = serde_json::from_slice(value).map_err(malformed)?;
        let id = unhex(&written.id).ok_or_else(|| RecordError::Malformed("the id".to_owned()))?;
        let extent = match format {
            CELLS_FORMAT => written
                .extent()
                .ok_or_else(|| RecordError::Malformed("the number of cells".to_owned()))?,
            _ => Extent::One,
        };
        let WrittenRecord { shards, segment_bytes, .. } = written;
        Ok(Self { id, shards, segment_bytes, extent })
    }

    /// How many cells the cluster has; of a cell: one.
    pub const fn cells(&self) -> u16 {
        match self.extent {
            Extent::One | Extent::Cell { .. } => 1,
            Extent::Many { cells, .. } => cells,
        }
    }

    /// In hexadecimal.
    pub fn id_in_hex(&self) -> String {
        hex(&self.id)
    }

    /// The value of the key.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { id, shards, segment_bytes, extent } = *self;
        let one = WrittenRecord {
            format: FORMAT,
            id: hex(&id),
            shards,
            segment_bytes,
            cells: None,
            seed: None,
            cluster: None,
            cell: None,
        };
        let written = match extent {
            Extent::One => one,
            Extent::Many { cells, seed } => {
                WrittenRecord { format: CELLS_FORMAT, cells: Some(cells), seed: Some(seed), ..one }
            }
            Extent::Cell { cluster, cell } => WrittenRecord {
                format: CELLS_FORMAT,
                cluster: Some(hex(&cluster)),
                cell: Some(cell),
                ..one
            },
        };
        serde_json::to_vec(&written).unwrap_or_default()
    }
}

impl WrittenRecord {
    /// `None`: it is malformed.
    fn extent(&self) -> Option<Extent> {
        match (self.cells, self.seed, &self.cluster, self.cell) {
            (Some(cells), Some(seed), None, None) if (2..=CELLS_MAX).contains(&cells) => {
                Some(Extent::Many { cells, seed })
            }
            (None, None, Some(cluster), Some(cell)) if cell < CELLS_MAX => {
                Some(Extent::Cell { cluster: unhex(cluster)?, cell })
            }
            _ => None,
        }
    }
}

/// What is kept beside a local copy, to go on reading the stream where it ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    pub cluster: ClusterId,
    /// The version of messages that its program reads.
    pub version: u8,
    pub cursor: Cursor,
    /// Position in the journal up to which the files hold what was read.
    pub end: u64,
}

/// The same, as JSON.
#[derive(Serialize, Deserialize)]
struct WrittenMark {
    /// In hexadecimal.
    cluster: String,
    #[serde(default = "first_version")]
    version: u8,
    /// Of the version's own form.
    cursor: serde_json::Value,
    end: u64,
}

const fn first_version() -> u8 {
    1
}

/// Why the data of a shard is not touched.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Foreign {
    #[error(
        "is the local copy of another cluster ({found}, this one is {own}): use another data directory, or remove this one"
    )]
    Cluster { found: String, own: String },
    #[error(
        "has the log of a broker without a cluster: import it with `quelea cluster import`, \
         or use an empty data directory"
    )]
    Single,
}

impl Mark {
    /// Of this program's version.
    pub const fn new(cluster: ClusterId, cursor: Cursor, end: u64) -> Self {
        Self { cluster, version: VERSION, cursor, end }
    }

    /// `None`: it is no mark.
    pub fn read(content: &[u8]) -> Option<Self> {
        let WrittenMark { cluster, version, cursor, end } = serde_json::from_slice(content).ok()?;
        // Whose copy it is can be read of every version.
        let cursor = serde_json::from_value(cursor).unwrap_or_default();
        Some(Self { cluster: unhex(&cluster)?, version, cursor, end })
    }

    /// The content of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { cluster, version, cursor, end } = self.clone();
        let cursor = serde_json::to_value(cursor).unwrap_or_default();
        let written = WrittenMark { cluster: hex(&cluster), version, cursor, end };
        serde_json::to_vec(&written).unwrap_or_default()
    }

    /// Decides what a node does with the files of a shard that it finds at its start. `mark`: the
    /// content of its file, if there is one. `None`: the copy begins with nothing.
    ///
    /// # Errors
    ///
    /// The files are not of this cluster. The node must leave them as they are.
    pub fn admit(
        mark: Option<&[u8]>,
        has_files: bool,
        own: &ClusterId,
    ) -> Result<Option<Self>, Foreign> {
        let Some(content) = mark else {
            return if has_files { Err(Foreign::Single) } else { Ok(None) };
        };
        let Some(mark) = Self::read(content) else { return Ok(None) };
        // A copy that was never begun is nobody's.
        let is_begun = has_files || mark.cursor != Cursor::default();
        if mark.cluster != *own && is_begun {
            return Err(Foreign::Cluster { found: hex(&mark.cluster), own: hex(own) });
        }
        // A node that ended before it noted anything has the default cursor. What a program of
        // another version has read is read again: the stream decides whether this one can.
        let is_of_use = mark.cursor != Cursor::default() && mark.version == VERSION;
        Ok(is_of_use.then_some(mark))
    }
}

/// What is kept beside the copies of a standby of the files of MQTT streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMark {
    pub cluster: ClusterId,
    /// What messages up to this one hold is in the files.
    pub sequence: u64,
}

#[derive(Serialize, Deserialize)]
struct WrittenBlockMark {
    /// In hexadecimal.
    cluster: String,
    sequence: u64,
}

impl BlockMark {
    /// `None`: it is no mark.
    pub fn read(content: &[u8]) -> Option<Self> {
        let WrittenBlockMark { cluster, sequence } = serde_json::from_slice(content).ok()?;
        Some(Self { cluster: unhex(&cluster)?, sequence })
    }

    /// The content of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let written = WrittenBlockMark { cluster: hex(&self.cluster), sequence: self.sequence };
        serde_json::to_vec(&written).unwrap_or_default()
    }
}

/// The settings of a node that should be the same on all nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// `cluster.node`.
    pub node: String,
    /// Random for each start of the process.
    pub instance: u64,
    /// Of the program.
    pub version: String,
    /// Checksum of the settings that should be the same on all nodes.
    pub config: String,
}

/// What does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misfit {
    /// Two nodes have one name.
    Name,
    Version,
    Config,
}

/// The other nodes, as far as they were compared with this one.
#[derive(Debug)]
pub struct Peers {
    own: Facts,
    compared: BTreeSet<u64>,
}

impl Peers {
    pub const fn new(own: Facts) -> Self {
        Self { own, compared: BTreeSet::new() }
    }

    /// What does not fit of another node: once for each of its starts.
    pub fn hear(&mut self, other: &Facts) -> Vec<Misfit> {
        if other.instance == self.own.instance || self.compared.contains(&other.instance) {
            return Vec::new();
        }
        if self.compared.len() == COMPARED_MAX {
            self.compared.clear();
        }
        self.compared.insert(other.instance);
        let Facts { node, version, config, .. } = &self.own;
        let misfits = [
            (*node == other.node, Misfit::Name),
            (*version != other.version, Misfit::Version),
            (*config != other.config, Misfit::Config),
        ];
        misfits.into_iter().filter_map(|(is_there, misfit)| is_there.then_some(misfit)).collect()
    }
}

/// In hexadecimal.
fn hex(id: &ClusterId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<ClusterId> {
    let is_whole = text.len() == 2 * size_of::<ClusterId>();
    let digits = is_whole && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| digits).map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ClusterId = [7; 16];

    fn mark() -> Mark {
        let cursor = Cursor { last: 9, epoch: 2, writer: 5, number: 3, ..Cursor::default() };
        Mark::new(OWN, cursor, 77)
    }

    #[test]
    fn a_record_is_read_as_written_and_other_formats_are_refused() {
        let one = Record { id: OWN, shards: 4, segment_bytes: 65536, extent: Extent::One };
        let text =
            format!(r#"{{"format":2,"id":"{}","shards":4,"segment_bytes":65536}}"#, hex(&OWN));
        assert_eq!(String::from_utf8(one.to_bytes()).unwrap(), text, "as earlier programs have it");
        let many = Record { extent: Extent::Many { cells: 6, seed: u64::MAX }, ..one };
        let cell = Record { extent: Extent::Cell { cluster: [9; 16], cell: 5 }, ..one };
        for record in [one, many, cell] {
            assert_eq!(Record::read(&record.to_bytes()), Ok(record));
        }
        assert_eq!([one, many, cell].map(|record| record.cells()), [1, 6, 1]);
        let newer = Record::read(br#"{"format":4,"name":"x"}"#).unwrap_err();
        assert_eq!(newer, RecordError::Format(4));
        assert!(newer.to_string().contains("use a newer one"));
        let no_id = br#"{"format":2,"id":"+7","shards":1,"segment_bytes":65536}"#;
        for wrong in [&b"{}"[..], b"", br#"{"format":2}"#, no_id] {
            assert!(matches!(Record::read(wrong), Err(RecordError::Malformed(_))));
        }
    }

    #[test]
    fn a_record_of_cells_that_states_no_number_of_them_is_malformed() {
        let begin = format!(r#""format":3,"id":"{}","shards":4,"segment_bytes":65536"#, hex(&OWN));
        let cluster = hex(&OWN);
        for rest in [
            "".to_owned(),
            r#","cells":6"#.to_owned(),
            r#","cells":1,"seed":1"#.to_owned(),
            r#","cells":57,"seed":1"#.to_owned(),
            r#","cells":6,"seed":1,"cell":1"#.to_owned(),
            format!(r#","cluster":"{cluster}""#),
            format!(r#","cluster":"{cluster}","cell":56"#),
            r#","cluster":"7","cell":1"#.to_owned(),
        ] {
            let read = Record::read(format!("{{{begin}{rest}}}").as_bytes());
            assert!(matches!(read, Err(RecordError::Malformed(_))), "{rest}: {read:?}");
        }
    }

    #[test]
    fn a_record_of_the_old_format_is_read_by_those_who_ask_for_it_only() {
        let id = "07".repeat(16);
        let old = format!(r#"{{"format":1,"id":"{id}","shards":4,"segment_bytes":65536}}"#);
        let error = Record::read(old.as_bytes()).unwrap_err();
        assert_eq!(error, RecordError::Old);
        assert!(error.to_string().contains("quelea cluster export"), "{error}");
        let record = Record { id: OWN, shards: 4, segment_bytes: 65536, extent: Extent::One };
        assert_eq!(Record::read_old(old.as_bytes()), Ok(record));
        let error = Record::read_old(&record.to_bytes()).unwrap_err();
        assert_eq!(error, RecordError::Format(2));
    }

    #[test]
    fn a_node_goes_on_with_its_own_copy_only() {
        let content = mark().to_bytes();
        assert_eq!(Mark::admit(Some(&content), true, &OWN), Ok(Some(mark())));
        assert_eq!(Mark::admit(None, false, &OWN), Ok(None));
        assert_eq!(Mark::admit(Some(b"torn"), true, &OWN), Ok(None));
        assert_eq!(Mark::admit(None, true, &OWN), Err(Foreign::Single));
        let error = Mark::admit(Some(&content), true, &[8; 16]).unwrap_err().to_string();
        assert!(error.contains("another cluster (0707") && error.contains("is 0808"), "{error}");
        let never_begun = Mark::new(OWN, Cursor::default(), 0).to_bytes();
        assert_eq!(Mark::admit(Some(&never_begun), false, &[8; 16]), Ok(None));
        assert!(Mark::admit(Some(&never_begun), true, &[8; 16]).is_err());
    }

    #[test]
    fn a_mark_of_stream_files_is_read_as_written() {
        let mark = BlockMark { cluster: OWN, sequence: 12 };
        assert_eq!(BlockMark::read(&mark.to_bytes()), Some(mark));
        assert_eq!(BlockMark::read(b"torn"), None);
    }

    #[test]
    fn what_a_program_of_another_version_has_read_is_read_again() {
        let newer = Mark { version: VERSION + 1, ..mark() };
        assert_eq!(Mark::admit(Some(&newer.to_bytes()), true, &OWN), Ok(None));
        let other = Mark::admit(Some(&newer.to_bytes()), true, &[8; 16]);
        assert!(matches!(other, Err(Foreign::Cluster { .. })));
        // Of version 1: the first one was not written.
        let id = "07".repeat(16);
        let old = format!(
            r#"{{"cluster":"{id}","cursor":{{"last":9,"epoch":2,"writer":5,"number":3,
            "segments":{{"4":7}}}},"end":77}}"#
        );
        assert_eq!(Mark::read(old.as_bytes()).map(|mark| mark.version), Some(1));
        assert_eq!(Mark::admit(Some(old.as_bytes()), true, &OWN), Ok(None));
        let other = Mark::admit(Some(old.as_bytes()), true, &[8; 16]);
        assert!(matches!(other, Err(Foreign::Cluster { .. })), "it must not be removed");
    }

    #[test]
    fn what_does_not_fit_is_reported_once_for_each_start() {
        let facts = |node: &str, instance, version: &str, config: &str| Facts {
            node: node.into(),
            instance,
            version: version.into(),
            config: config.into(),
        };
        let mut peers = Peers::new(facts("a", 1, "1.0", "x"));
        assert_eq!(peers.hear(&facts("a", 1, "1.0", "x")), []);
        assert_eq!(peers.hear(&facts("b", 2, "1.0", "x")), []);
        let all = [Misfit::Name, Misfit::Version, Misfit::Config];
        assert_eq!(peers.hear(&facts("a", 3, "1.1", "y")), all);
        assert_eq!(peers.hear(&facts("a", 3, "1.1", "y")), []);
        for instance in 4..2 * COMPARED_MAX as u64 {
            assert_eq!(peers.hear(&facts("b", instance, "1.0", "y")), [Misfit::Config]);
            assert!(peers.compared.len() <= COMPARED_MAX);
        }
    }
}
