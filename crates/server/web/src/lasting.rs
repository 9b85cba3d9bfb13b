//! Answers that go on: a stream of events, for as long as somebody takes them.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::Frame;
use tokio::sync::{mpsc, oneshot};
use tokio::time::error::Elapsed;

/// How long who is cut may take for what it was sent last.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Goes into the extensions of a response whose body goes on: its connection may stay open for
/// longer than others, until it ends by itself, or the other end of the channel is dropped.
#[derive(Clone, Debug)]
pub struct Lasting(Arc<Mutex<Option<oneshot::Receiver<()>>>>);

/// The body of a response: what comes through a channel, until its other end is dropped.
pub fn stream(queue: mpsc::Receiver<Bytes>) -> Body {
    Body::new(Stream(queue))
}

/// The same for a body that has an end. An error breaks the answer off, so that nobody takes what
/// came before it for all.
pub fn stream_of_parts(queue: mpsc::Receiver<io::Result<Bytes>>) -> Body {
    Body::new(Stream(queue))
}

struct Stream<T>(mpsc::Receiver<T>);

/// Of a connection: the lasting answer that was given, if one was.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Lasting>>>);

impl Lasting {
    pub fn until(over: oneshot::Receiver<()>) -> Self {
        Self(Arc::new(Mutex::new(Some(over))))
    }

    /// Waits for the connection, or until it is over.
    pub(crate) async fn while_open<T>(
        self,
        connection: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, Elapsed> {
        let over = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut connection = connection;
        if let Some(over) = over {
            tokio::select! {
                ended = connection.as_mut() => return Ok(ended),
                _ = over => {}
            }
        }
        tokio::time::timeout(LAST_WORDS, connection).await
    }
}

impl Slot {
    pub(crate) fn keep(&self, lasting: Option<Lasting>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = lasting;
    }

    pub(crate) fn take(&self) -> Option<Lasting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl hyper::body::Body for Stream<Bytes> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl hyper::body::Body for Stream<io::Result<Bytes>> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|part| part.map(|bytes| bytes.map(Frame::data)))
    }
}
