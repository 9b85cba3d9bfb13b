//! Lines on their way to the log: whoever logs puts them into a bounded buffer, and one thread
//! writes them. A log that cannot be written as fast as lines come, or not at all, costs lines,
//! which are counted, and never anybody's time.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// Bytes of lines that wait to be written. More are lost.
const QUEUE_BYTES_MAX: usize = 1024 * 1024;

/// Of these, bytes that only warnings and errors may take: a flood of what is merely interesting
/// does not drown them.
const RESERVED_BYTES: usize = QUEUE_BYTES_MAX / 4;

/// What a buffer keeps of its room when it is empty.
const IDLE_BYTES: usize = 16 * 1024;

/// Where lines end up.
pub(super) enum Sink {
    Stdout,
    Stderr,
    File(File),
}

/// Shared by all who log and the thread that writes.
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is something to write, or to end.
    wake: Condvar,
    /// All that was there is written.
    settled: Condvar,
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    lines: Vec<u8>,
    /// Takes the place of the one in use, before the next line.
    next_file: Option<File>,
    /// Lines lost since that was logged.
    lost: u64,
    is_writing: bool,
    is_closed: bool,
}

/// Hands the queue to the formatter, line by line.
#[derive(Clone)]
pub(super) struct Producer {
    pub(super) queue: Arc<Queue>,
    /// Lines are JSON documents.
    pub(super) is_json: bool,
}

/// Takes one line.
pub(super) struct LineWriter<'a> {
    queue: &'a Queue,
    is_json: bool,
    bytes_max: usize,
}

impl Queue {
    pub(super) fn start(sink: Sink) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let queue = Arc::new(Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            settled: Condvar::new(),
            lost: AtomicU64::new(0),
        });
        let shared = queue.clone();
        let thread =
            std::thread::Builder::new().name("logging".into()).spawn(move || shared.write(sink))?;
        Ok((queue, thread))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lines that were lost since the start.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// From the next line on, lines go to this file.
    pub(super) fn replace_file(&self, file: File) {
        self.lock().next_file = Some(file);
        self.wake.notify_one();
    }

    /// Waits until all that was logged before is written, but no longer than that.
    pub(super) fn flush(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut state = self.lock();
        while !state.is_idle() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.settled.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lock().is_idle()
    }

    /// The thread ends when it has written what is there.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.wake.notify_one();
    }

    fn put(&self, line: &[u8], bytes_max: usize) {
        let mut state = self.lock();
        if state.lines.len() + line.len() > bytes_max {
            state.lost += 1;
            drop(state);
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.lines.extend_from_slice(line);
        drop(state);
        self.wake.notify_one();
    }

    /// What the thread does.
    fn write(&self, mut sink: Sink) {
        let mut lines = Vec::new();
        while let Some((next_file, lost)) = self.take(&mut lines) {
            if let Some(file) = next_file {
                sink = Sink::File(file);
            }
            let unwritten = sink.write(&lines);
            self.lost.fetch_add(unwritten, Ordering::Relaxed);
            lines.clear();
            lines.shrink_to(IDLE_BYTES);
            let lost = lost + unwritten;
            // Of those that cannot be written, a line that cannot be written either is no help.
            if lost > 0 && unwritten == 0 {
                tracing::warn!(lines = lost, "log lines were lost: the log is written too slowly");
            } else if lost > 0 {
                self.lock().lost += lost;
            }
        }
    }

    /// Waits for lines and swaps them for an empty buffer. None: there will be no more.
    fn take(&self, lines: &mut Vec<u8>) -> Option<(Option<File>, u64)> {
        let mut state = self.lock();
        state.is_writing = false;
        while state.lines.is_empty() && state.next_file.is_none() {
            self.settled.notify_all();
            if state.is_closed {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_writing = true;
        std::mem::swap(&mut state.lines, lines);
        Some((state.next_file.take(), std::mem::take(&mut state.lost)))
    }
}

impl State {
    fn is_idle(&self) -> bool {
        !self.is_writing && self.lines.is_empty() && self.next_file.is_none()
    }
}

impl Sink {
    /// Writes whole lines; returns how many could not be written.
    fn write(&mut self, lines: &[u8]) -> u64 {
        let written = match self {
            Self::Stdout => write_to(&mut io::stdout().lock(), lines),
            Self::Stderr => write_to(&mut io::stderr().lock(), lines),
            Self::File(file) => write_to(file, lines),
        };
        if written.is_ok() { 0 } else { count(lines) }
    }
}

fn write_to(out: &mut impl io::Write, lines: &[u8]) -> io::Result<()> {
    out.write_all(lines)?;
    out.flush()
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

impl<'a> MakeWriter<'a> for Producer {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { queue: &self.queue, is_json: self.is_json, bytes_max: QUEUE_BYTES_MAX }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter<'a> {
        let is_urgent = *metadata.level() <= tracing::Level::WARN;
        let reserved = if is_urgent { 0 } else { RESERVED_BYTES };
        LineWriter {
            queue: &self.queue,
            is_json: self.is_json,
            bytes_max: QUEUE_BYTES_MAX - reserved,
        }
    }
}

impl io::Write for LineWriter<'_> {
    /// The formatter gives a line whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // What clients chose changes nothing of the line around it, nor hides in it.
        let text = std::str::from_utf8(line).ok().filter(|_| !line.is_ascii());
        let escape: fn(&str) -> Cow<'_, str> =
            if self.is_json { base::seen_json } else { base::seen_lines };
        let seen = text.map(escape);
        self.queue.put(seen.as_deref().map_or(line, str::as_bytes), self.bytes_max);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn unwritten() -> Queue {
        Queue {
            state: Mutex::default(),
            wake: Condvar::new(),
            settled: Condvar::new(),
            lost: AtomicU64::new(0),
        }
    }

    #[test]
    fn what_is_hidden_is_escaped() {
        for (is_json, expected) in [(true, "a\\u202eb\u{e9}\n"), (false, "a\\u{202e}b\u{e9}\n")] {
            let queue = Arc::new(unwritten());
            let producer = Producer { queue: queue.clone(), is_json };
            let written = producer.make_writer().write_all("a\u{202e}b\u{e9}\n".as_bytes());
            written.expect("it takes everything");
            assert_eq!(queue.lock().lines, expected.as_bytes());
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_warnings_have_room_left() {
        let queue = unwritten();
        let line = [b'x'; 1023];
        let mut line = line.to_vec();
        line.push(b'\n');
        for _ in 0..QUEUE_BYTES_MAX / line.len() {
            queue.put(&line, QUEUE_BYTES_MAX - RESERVED_BYTES);
        }
        let reserved = (RESERVED_BYTES / line.len()) as u64;
        assert_eq!(queue.lost(), reserved);
        for _ in 0..=reserved {
            queue.put(&line, QUEUE_BYTES_MAX);
        }
        assert_eq!(queue.lost(), reserved + 1);
        let mut taken = Vec::new();
        let (file, lost) = queue.take(&mut taken).unwrap();
        assert!(file.is_none() && lost == reserved + 1);
        assert_eq!(taken.len(), QUEUE_BYTES_MAX);
        queue.close();
        assert!(queue.take(&mut Vec::new()).is_none());
    }

    #[test]
    fn nobody_waits_for_a_log_that_is_not_written() {
        let queue = unwritten();
        queue.put(b"line\n", QUEUE_BYTES_MAX);
        queue.flush(Duration::ZERO);
        assert_eq!(queue.lock().lines, b"line\n");
    }
}
