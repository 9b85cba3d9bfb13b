//! The thread on which targets work.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// One thread, for any number of targets: they wait for each other only while one computes.
/// Dropping it ends all their work.
pub struct Threads {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    ended: mpsc::Receiver<()>,
}

impl Threads {
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_name("targets-blocking")
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (ending, ended) = mpsc::channel();
        std::thread::Builder::new().name("targets".into()).spawn(move || {
            // It ends when the sender is dropped as well.
            let _ = runtime.block_on(stopped);
            // A name that is being resolved is not waited for.
            runtime.shutdown_background();
            drop(ending);
        })?;
        Ok(Self { handle, stop: Some(stop), ended })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Nothing is sent here: the wait is for the end of the thread.
        let _ = self.ended.recv_timeout(STOP_TIME_MAX);
    }
}

/// For names, files and the codecs gzip and zstd.
const BLOCKING_THREADS_MAX: usize = 32;
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
