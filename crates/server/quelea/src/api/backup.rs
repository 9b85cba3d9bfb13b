//! A backup as an answer: a tar archive that is written while it is read.
//!
//! A thread asks the broker through its control socket to keep its journals, as `quelea backup`
//! does, and hands their content on in chunks. Whoever does not take them lets the journals go.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::moment;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tools::archive::PinnedData;
use web::axum::body::Bytes;
use web::axum::http::StatusCode;
use web::axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use web::axum::response::{IntoResponse as _, Response};

use super::Api;
use super::call::Call;
use super::events::reader;
use super::problem::Problem;
use crate::life_cycle::Caller;
use crate::run::{JournalBoard, JournalState};

/// What is said of it in the OpenAPI document.
pub(crate) const MEDIA_TYPE: &str = "application/x-tar";

/// A reader that takes no chunk for so long is cut: until it goes, the logs reclaim no space.
const CHUNK_TIME_MAX: Duration = Duration::from_secs(30);

const CHUNK_BYTES: usize = 64 << 10;

/// Chunks that wait to be taken.
const CHUNKS_MAX: usize = 2;

pub(crate) async fn stream(api: Arc<Api>, call: Call) -> Result<Response, Problem> {
    let conflict = |detail: &str| Problem::new(StatusCode::CONFLICT, detail);
    if !api.facts.config.durability.has_journal() {
        let fix = "a broker with durability = \"memory\" has no data directory";
        return Err(conflict("there is nothing to back up").fix(fix));
    }
    let place = api.backup.clone().try_acquire_owned();
    let place = place.map_err(|_| conflict("another backup is running").fix("wait for its end"))?;
    let caller = reader(&api, &call);
    let (chunks, body) = mpsc::channel(CHUNKS_MAX);
    let (open, over) = oneshot::channel();
    let (started, start) = oneshot::channel();
    let board = api.facts.board.clone();
    let out = Chunks {
        queue: chunks,
        runtime: Handle::current(),
        buffer: Vec::new(),
        chunk_time_max: CHUNK_TIME_MAX,
        caller,
        board_was_full: is_full(&board),
        board,
    };
    let work = Work {
        dir: api.facts.config.server.data_dir.clone(),
        started,
        out,
        _place: place,
        _open: open,
    };
    let failed = |detail: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
    let spawned = std::thread::Builder::new().name("backup".into()).spawn(move || work.run());
    spawned.map_err(|error| failed(format!("the system gives no thread: {error}")))?;
    let begun = start.await.map_err(|_| failed("the thread of the backup failed".into()))?;
    begun.map_err(|detail| failed(detail).fix("see the log of the broker"))?;
    let time = moment::text_of(api.facts.clock.wall_secs()).replace(':', "");
    let headers = [
        (CONTENT_TYPE, MEDIA_TYPE.to_owned()),
        (CACHE_CONTROL, "no-store".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"quelea-{time}.tar\"")),
    ];
    let mut response = (headers, web::stream_of_parts(body)).into_response();
    response.extensions_mut().insert(web::Lasting::until(over));
    Ok(response)
}

struct Work {
    dir: PathBuf,
    /// Hears whether the journals are kept.
    started: oneshot::Sender<Result<(), String>>,
    out: Chunks,
    /// One backup at a time.
    _place: OwnedSemaphorePermit,
    /// The connection may stay open until this is dropped.
    _open: oneshot::Sender<()>,
}

impl Work {
    fn run(self) {
        let Self { dir, started, mut out, .. } = self;
        let data = match PinnedData::pin(&dir) {
            Ok(data) => data,
            Err(error) => {
                // Who has gone needs no answer.
                let _ = started.send(Err(format!("{error:#}")));
                return;
            }
        };
        if started.send(Ok(())).is_err() {
            return;
        }
        if let Err(error) = data.write_archive(&mut out) {
            tracing::warn!(reason = format!("{error:#}"), "backup over the API failed");
            out.abort(&error);
        }
    }
}

/// The body of the answer, written by a thread.
struct Chunks {
    queue: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    buffer: Vec<u8>,
    chunk_time_max: Duration,
    caller: Caller,
    board: Arc<JournalBoard>,
    board_was_full: bool,
}

impl Chunks {
    fn send(&self, chunk: io::Result<Bytes>) -> io::Result<()> {
        // A timer belongs to a runtime, so it is made there.
        let sending =
            async { tokio::time::timeout(self.chunk_time_max, self.queue.send(chunk)).await };
        let sent = self.runtime.block_on(sending);
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::Error::other("the caller has gone")),
            Err(_) => {
                let secs = self.chunk_time_max.as_secs();
                Err(io::Error::other(format!("the caller took nothing for {secs} s")))
            }
        }
    }

    /// The rights of the caller may have ended; and no backup may cost the broker its space.
    fn check(&self) -> io::Result<()> {
        if !(self.caller.may_read)() {
            return Err(io::Error::other("the caller is not accepted any more"));
        }
        if !self.board_was_full && is_full(&self.board) {
            return Err(io::Error::other("a log became full: it may reclaim space now"));
        }
        Ok(())
    }

    /// The answer ends as a broken one.
    fn abort(&self, error: &anyhow::Error) {
        // Who has gone knows.
        let _ = self.send(Err(io::Error::other(error.to_string())));
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.buffer.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.check()?;
        let chunk = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        self.send(Ok(chunk.into()))
    }
}

fn is_full(board: &JournalBoard) -> bool {
    board.states().any(|state| state == JournalState::Full)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::http::Health;

    fn chunks(runtime: Handle, caller: Caller) -> (Chunks, mpsc::Receiver<io::Result<Bytes>>) {
        let (queue, body) = mpsc::channel(CHUNKS_MAX);
        let chunks = Chunks {
            queue,
            runtime,
            buffer: Vec::new(),
            chunk_time_max: Duration::from_millis(10),
            caller,
            board: Arc::new(JournalBoard::new(1, Health::new())),
            board_was_full: false,
        };
        (chunks, body)
    }

    /// A runtime like that of the HTTP thread, which runs until the process ends.
    fn runtime() -> Handle {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    }

    fn caller(is_accepted: Arc<AtomicBool>) -> Caller {
        let may_read = move || is_accepted.load(Ordering::Relaxed);
        Caller { name: "anna".into(), may_read: Box::new(may_read) }
    }

    #[test]
    fn a_caller_that_takes_nothing_is_cut() {
        let (mut out, _body) = chunks(runtime(), caller(Arc::new(true.into())));
        let error = out.write_all(&vec![0; (CHUNKS_MAX + 1) * CHUNK_BYTES]).unwrap_err();
        assert!(error.to_string().contains("took nothing"), "{error}");
    }

    #[test]
    fn a_caller_that_is_not_accepted_any_more_gets_no_more() {
        let is_accepted = Arc::new(AtomicBool::new(true));
        let (mut out, mut body) = chunks(runtime(), caller(is_accepted.clone()));
        out.write_all(&[0; CHUNK_BYTES]).unwrap();
        assert_eq!(body.try_recv().unwrap().unwrap().len(), CHUNK_BYTES);
        is_accepted.store(false, Ordering::Relaxed);
        let error = out.write_all(&[0; CHUNK_BYTES]).unwrap_err();
        assert!(error.to_string().contains("not accepted"), "{error}");
        assert!(body.try_recv().is_err());
    }

    #[test]
    fn a_log_that_becomes_full_ends_a_backup_and_one_that_was_full_does_not() {
        for (board_was_full, is_cut) in [(false, true), (true, false)] {
            let (mut out, _body) = chunks(runtime(), caller(Arc::new(true.into())));
            out.board_was_full = board_was_full;
            out.write_all(&[0; CHUNK_BYTES]).unwrap();
            out.board.show(0, JournalState::Full, &storage::Stats::default());
            let cut = out
                .write_all(&[0; CHUNK_BYTES])
                .is_err_and(|error| error.to_string().contains("became full"));
            assert_eq!(cut, is_cut);
        }
    }
}
