//! Receives what a broker routes: reads a topic of Kafka, or answers as a webhook, and unwraps the
//! events. Each sink has a thread and a runtime of its own, so that it delays no load thread.

mod event;
mod kafka;
#[cfg(test)]
mod testing;
mod webhook;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use flock_model::{Sink as Model, SinkKind};
use tokio::sync::oneshot;

pub use event::{Event, EventError};

/// Gets each event when it arrives, and what is no event. It is called on the thread of the sink.
pub type OnArrival = Arc<dyn Fn(Result<Event<'_>, EventError>) + Send + Sync>;

/// A sink that is open: from here on it misses nothing. Dropping it closes it.
#[derive(Debug)]
pub struct Sink {
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    address: Option<SocketAddr>,
}

/// Why a sink cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("sink `{0}`: cannot start its thread: {1}")]
    Thread(String, #[source] io::Error),
    #[error("sink `{0}`: cannot listen on {1}: {2}")]
    Listen(String, String, #[source] io::Error),
    #[error("sink `{sink}`: cannot read Kafka at {servers}: {reason}")]
    Kafka { sink: String, servers: String, reason: String },
    #[error("sink `{sink}`: Kafka at {servers} has no topic `{topic}`: create it first")]
    NoTopic { sink: String, servers: String, topic: String },
}

/// What a sink met in addition to events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Requests that a webhook refused because the scenario says so.
    pub refused: u64,
    /// Attempts to read that failed, and the last reason.
    pub failures: u64,
    pub last_failure: String,
}

#[derive(Debug, Default)]
struct State(Mutex<Standing>);

impl State {
    fn change(&self, change: impl FnOnce(&mut Standing)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn fail(&self, reason: String) {
        self.change(|standing| {
            standing.failures += 1;
            standing.last_failure = reason;
        });
    }
}

impl Sink {
    /// Opens a sink, and returns when it is ready.
    ///
    /// # Errors
    ///
    /// The address is taken, or Kafka does not answer or lacks the topic.
    pub fn open(model: &Model, on_arrival: OnArrival) -> Result<Self, SinkError> {
        let no_thread = |error| SinkError::Thread(model.id.clone(), error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(no_thread)?;
        let state = Arc::<State>::default();
        let (stop, stopped) = oneshot::channel();
        let (shared, mut address) = (Arc::clone(&state), None);
        let work: Box<dyn FnOnce() + Send> = match &model.kind {
            SinkKind::Kafka(kafka) => {
                let reader = runtime.block_on(kafka::Reader::open(&model.id, kafka))?;
                let reading = async move { reader.run(&on_arrival, &shared, stopped).await };
                Box::new(move || runtime.block_on(reading))
            }
            SinkKind::Webhook(webhook) => {
                let failed =
                    |error| SinkError::Listen(model.id.clone(), webhook.listen.clone(), error);
                let listener = webhook::listen(&webhook.listen).map_err(failed)?;
                address = Some(listener.local_addr().map_err(failed)?);
                let hook = webhook::Hook::new(webhook.clone(), on_arrival, shared);
                let serving = async move {
                    tokio::select! {
                        () = hook.serve(listener) => {}
                        // A dropped sender counts as a stop.
                        _ = stopped => {}
                    }
                };
                Box::new(move || runtime.block_on(serving))
            }
        };
        let builder = std::thread::Builder::new().name(format!("sink-{}", model.id));
        let thread = builder.spawn(work).map_err(no_thread)?;
        Ok(Self { state, stop: Some(stop), thread: Some(thread), address })
    }

    pub fn standing(&self) -> Standing {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where a webhook listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Accepts nothing more. Whatever arrived before has been passed on when this returns.
    pub fn close(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.close();
    }
}
