//! Into the owner of streams: from workers, the disk, targets and operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use broker::ShardId;
use broker::streams::{Flag, StreamNews, StreamNumber};
use storage::Fault;
use storage::stream::StreamCommandId;

use super::owner::Owner;

/// What reaches the owner, one after the other.
pub(super) enum Input {
    News(ShardId, Vec<StreamNews>, u64),
    /// What has become of a write.
    File(StreamNumber, StreamCommandId, Result<(), Fault>),
    Answer {
        target: usize,
        answer: targets::Answer,
    },
    /// What an operator asks or wants done.
    Call(Box<dyn FnOnce(&mut Owner) + Send>),
    /// Send nothing more, write what is known, and end.
    Stop,
}

/// Bounded by its senders: workers stop reading publishers while much of what they have put is not
/// taken out, the disk and targets answer what they were asked, and operators are few.
#[derive(Clone)]
pub(crate) struct Inbox {
    sender: Sender<Input>,
    queued: Arc<Queued>,
}

struct Queued {
    bytes: AtomicU64,
    bytes_max: u64,
    is_behind: Arc<Flag>,
}

impl Inbox {
    pub(super) fn new(sender: Sender<Input>, bytes_max: u64, is_behind: Arc<Flag>) -> Self {
        Self { sender, queued: Arc::new(Queued { bytes: AtomicU64::new(0), bytes_max, is_behind }) }
    }

    /// What a shard reports.
    pub(in crate::run) fn put_news(&self, shard: ShardId, news: Vec<StreamNews>) {
        let bytes = news.iter().map(bytes_of).sum();
        let queued = self.queued.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if queued > self.queued.bytes_max {
            self.queued.is_behind.set(true);
        }
        self.put(Input::News(shard, news, bytes));
    }

    pub(super) fn put(&self, input: Input) {
        // Without an owner the broker is about to end.
        let _ = self.sender.send(input);
    }

    /// Has an operator's wish carried out.
    pub(crate) fn call(&self, wish: impl FnOnce(&mut Owner) + Send + 'static) {
        self.put(Input::Call(Box::new(wish)));
    }

    /// The owner has taken news with so many bytes out. `is_full`: its own memory is full.
    pub(super) fn take_out(&self, bytes: u64) {
        self.queued.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Says whether publishers have to wait.
    pub(super) fn set_behind(&self, is_memory_full: bool) {
        let queued = self.queued.bytes.load(Ordering::Relaxed);
        self.queued.is_behind.set(is_memory_full || queued > self.queued.bytes_max);
    }
}

fn bytes_of(news: &StreamNews) -> u64 {
    match news {
        StreamNews::Stored { records, .. } => {
            records.iter().map(|record| record.bytes.len() as u64).sum()
        }
        _ => 0,
    }
}
