//! Requests to one endpoint, over connections that are used again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::time::timeout;

use crate::dial::{DialError, Dialer};

pub(super) struct Client {
    pub(super) dialer: Dialer,
    pub(super) host: String,
    pub(super) port: u16,
    /// For a request, with its connection.
    pub(super) time_max: Duration,
    /// Connections without a request, the one used last at the end.
    pub(super) idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum ExchangeError {
    /// The request was not sent.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The request may have arrived.
    #[error("the endpoint gave no answer: {0}")]
    Lost(hyper::Error),
    #[error("the endpoint gave no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the endpoint's answer has more than {ANSWER_BYTES_MAX} bytes")]
    Large,
}

impl ExchangeError {
    /// Whether the endpoint cannot have got the request.
    pub(super) const fn is_unsent(&self) -> bool {
        matches!(self, Self::Dial(_))
    }
}

impl Client {
    /// Sends a request, and reads the whole answer.
    pub(super) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, ExchangeError> {
        let mut sender = self.connection().await?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(ExchangeError::Lost)?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|_| ExchangeError::Large)?.to_bytes();
            Ok::<_, ExchangeError>(Response::from_parts(head, body))
        };
        let answer = match timeout(self.time_max, exchange).await {
            Ok(answer) => answer?,
            Err(_) => return Err(ExchangeError::TimedOut(self.time_max)),
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(sender);
        }
        Ok(answer)
    }

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, ExchangeError> {
        while let Some(mut known) = self.take_idle() {
            // Many endpoints close a connection after a minute without a request.
            if timeout(READY_TIME_MAX, known.ready()).await.is_ok_and(|ready| ready.is_ok()) {
                return Ok(known);
            }
        }
        let wire = self.dialer.connect(&self.host, self.port).await?;
        let (sender, connection) =
            handshake(TokioIo::new(wire)).await.map_err(ExchangeError::Lost)?;
        // It ends with its last request.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

/// Connections that wait for a request. Policy: others are closed.
const IDLE_MAX: usize = 256;
/// A connection that was answered on is ready, or closed.
const READY_TIME_MAX: Duration = Duration::from_millis(100);
/// More of an answer is not read. Its text is not used but for validation.
const ANSWER_BYTES_MAX: usize = 64 << 10;
