//! The interface of all targets.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

/// One record for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// A topic of the target.
    pub topic: Arc<str>,
    /// Records with the same topic and key arrive in order. Without a key there is no order.
    pub key: Option<Bytes>,
    pub value: Bytes,
    pub headers: Vec<(String, Bytes)>,
    /// Milliseconds since 1970. None: the time of sending.
    pub time_ms: Option<i64>,
}

/// Records that are sent together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The caller's number for it. The answer has the same.
    pub id: u64,
    pub records: Vec<Record>,
    /// Nothing else is sent to the target at the same time. The answer to a single record is then
    /// about this record, and only then it can be [`Outcome::Refused`] for its content.
    pub is_alone: bool,
}

/// What became of one record. The texts are for people and name no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target has stored it.
    Accepted,
    /// It will never be accepted: the error is in the target's list of permanent errors.
    Refused(Arc<str>),
    /// The target refused a group of records, and this one was in it. Smaller batches find which.
    BatchRefused(Arc<str>),
    /// It may be stored or not: it has to be sent again.
    Unknown(Arc<str>),
    /// Not stored. The target asks for a pause.
    BusyUntil(Instant, Arc<str>),
    /// Not stored. The target was not reached, or did not let us in.
    Unavailable(Arc<str>),
}

/// The answer to one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub id: u64,
    /// One for each record, in the order of the batch.
    pub outcomes: Vec<Outcome>,
}

/// Gets the answers on a thread of the target. It must not wait.
pub type Answers = Arc<dyn Fn(Answer) + Send + Sync>;

/// The queue of the target is full; here is the batch again.
#[derive(Debug, PartialEq, Eq)]
pub struct Full(pub Batch);

/// Where batches are sent. Dropping it stops it: batches without an answer get one first.
pub trait Target: Send {
    /// Queues a batch, without waiting. Its answer comes later. Batches that share keys must not be
    /// under way at the same time, as a retry would be overtaken.
    ///
    /// # Errors
    ///
    /// The batch, if the queue is full.
    fn send(&self, batch: Batch) -> Result<(), Full>;
}

impl Outcome {
    /// Whether the record has to be sent again.
    pub fn is_open(&self) -> bool {
        !matches!(self, Self::Accepted | Self::Refused(_))
    }
}

/// Keeps the order of each key: what was accepted behind a record that has to be sent again is sent
/// again as well. The target then has it twice, but has the last copies in order.
pub(crate) fn keep_order(records: &[Record], outcomes: &mut [Outcome]) {
    let mut open: HashSet<(&str, &[u8])> = HashSet::new();
    for (record, outcome) in records.iter().zip(outcomes) {
        let Some(key) = &record.key else { continue };
        let lane = (&*record.topic, &**key);
        if outcome.is_open() {
            open.insert(lane);
        } else if *outcome == Outcome::Accepted && open.contains(&lane) {
            *outcome = Outcome::Unknown(REWOUND.into());
        }
    }
}

const REWOUND: &str = "stored, but sent again behind an earlier record with the same key";

#[cfg(test)]
mod tests {
    use super::*;

    fn record(topic: &str, key: Option<&'static str>) -> Record {
        Record {
            topic: topic.into(),
            key: key.map(|key| Bytes::from_static(key.as_bytes())),
            value: Bytes::new(),
            headers: Vec::new(),
            time_ms: None,
        }
    }

    #[test]
    fn a_key_is_rewound_to_its_first_open_record() {
        let records = [
            record("t", Some("a")),
            record("t", Some("a")),
            record("t", Some("b")),
            record("u", Some("a")),
            record("t", Some("a")),
            record("t", None),
        ];
        let mut outcomes = vec![Outcome::Accepted; 6];
        outcomes[1] = Outcome::Unavailable("away".into());
        keep_order(&records, &mut outcomes);
        let open: Vec<bool> = outcomes.iter().map(Outcome::is_open).collect();
        assert_eq!(open, [false, true, false, false, true, false]);
    }

    #[test]
    fn a_refused_record_rewinds_nothing_and_stays_refused() {
        let records = [record("t", Some("a")), record("t", Some("a")), record("t", Some("a"))];
        let refused = Outcome::Refused("too large".into());
        let mut outcomes = vec![refused.clone(), Outcome::Accepted, Outcome::Accepted];
        keep_order(&records, &mut outcomes);
        assert_eq!(outcomes, [refused.clone(), Outcome::Accepted, Outcome::Accepted]);
        let mut outcomes = vec![Outcome::Unknown("?".into()), refused.clone(), Outcome::Accepted];
        keep_order(&records, &mut outcomes);
        assert_eq!(outcomes[1], refused);
        assert!(outcomes[2].is_open());
    }

    #[test]
    fn records_without_a_key_have_no_order() {
        let records = [record("t", None), record("t", None)];
        let mut outcomes = vec![Outcome::Unknown("?".into()), Outcome::Accepted];
        keep_order(&records, &mut outcomes);
        assert_eq!(outcomes[1], Outcome::Accepted);
    }
}
