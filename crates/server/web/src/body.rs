//! The body of a request, bounded in bytes and time.

use std::fmt::{self, Display};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};

/// Why there is no body to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// It has more bytes than these.
    TooLong { bytes_max: usize },
    /// It was not there in time.
    Late,
}

/// Reads all of it.
///
/// # Errors
///
/// When it is longer than `bytes_max`, or not there within ten seconds.
pub async fn read_body(body: Body, bytes_max: usize) -> Result<Bytes, BodyError> {
    read_within(body, bytes_max, BODY_TIME_MAX).await
}

pub(crate) async fn read_within(
    body: Body,
    bytes_max: usize,
    time_max: Duration,
) -> Result<Bytes, BodyError> {
    let too_long = BodyError::TooLong { bytes_max };
    // Who is answered before all has been read may lose the answer.
    let whole = to_bytes(body, bytes_max + LINGER_BYTES_MAX);
    match tokio::time::timeout(time_max, whole).await {
        Ok(Ok(bytes)) if bytes.len() <= bytes_max => Ok(bytes),
        // Or the client has gone, and nobody reads what is said.
        Ok(_) => Err(too_long),
        Err(_) => Err(BodyError::Late),
    }
}

impl Display for BodyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes_max } => write!(out, "the body has more than {bytes_max} bytes"),
            Self::Late => {
                let secs = BODY_TIME_MAX.as_secs();
                write!(out, "the body did not arrive within {secs} s")
            }
        }
    }
}

impl std::error::Error for BodyError {}

const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// What is still read of a body that is too long.
const LINGER_BYTES_MAX: usize = 4 << 20;
