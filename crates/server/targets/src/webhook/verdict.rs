//! What the answer of an endpoint means.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hyper::Response;
use hyper::header::{HeaderMap, RETRY_AFTER};

use crate::batch::Outcome;

/// What an answer means for what was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    /// It will not be accepted later.
    Permanent(Arc<str>),
    Unknown(Arc<str>),
    Busy(Instant, Arc<str>),
    Unavailable(Arc<str>),
    /// The endpoint wants nothing any more.
    Gone(Arc<str>),
}

/// The clocks at the time of the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) instant: Instant,
    pub(super) wall: SystemTime,
}

impl Now {
    pub(super) fn read() -> Self {
        Self { instant: Instant::now(), wall: SystemTime::now() }
    }
}

impl Verdict {
    pub(super) fn of<B>(answer: &Response<B>, permanent: &[u16], now: Now) -> Self {
        let status = answer.status();
        let text: Arc<str> = format!("the endpoint answered {status}").into();
        let pause = retry_after(answer.headers(), now);
        match status.as_u16() {
            // Event Grid's list. 205 and 206 are answers to something else.
            200..=204 => Self::Accepted,
            code if permanent.contains(&code) => Self::Permanent(text),
            410 => Self::Gone(text),
            429 => Self::Busy(now.instant + pause.unwrap_or(PAUSE), text),
            503 if pause.is_some() => Self::Busy(now.instant + pause.unwrap_or(PAUSE), text),
            // They concern the endpoint: its address, its rights, its configuration.
            300..=399 => Self::Unavailable(format!("{text}: redirects are not followed").into()),
            401 | 403 | 404 | 405 | 407 | 501 => Self::Unavailable(text),
            _ => Self::Unknown(text),
        }
    }

    /// The outcome of a record that was sent alone.
    pub(super) fn of_record(self) -> Outcome {
        match self {
            Self::Accepted => Outcome::Accepted,
            Self::Permanent(text) => Outcome::Refused(text),
            Self::Unknown(text) => Outcome::Unknown(text),
            Self::Busy(until, text) => Outcome::BusyUntil(until, text),
            Self::Unavailable(text) | Self::Gone(text) => Outcome::Unavailable(text),
        }
    }

    /// The outcome of records that were sent together.
    pub(super) fn of_group(self) -> Outcome {
        match self {
            Self::Permanent(text) => Outcome::BatchRefused(text),
            other => other.of_record(),
        }
    }
}

/// What the endpoint asks for, in seconds or as a date. Longer than an hour counts as an hour: the
/// endpoint may have changed its mind by then.
fn retry_after(headers: &HeaderMap, now: Now) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = match text.parse() {
        Ok(secs) => Duration::from_secs(secs),
        Err(_) => {
            let date = httpdate::parse_http_date(text).ok()?;
            date.duration_since(now.wall).unwrap_or_default()
        }
    };
    Some(asked.min(PAUSE_MAX))
}

/// Of an endpoint that has too many requests and does not say until when.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::PERMANENT;

    fn verdict(code: u16, retry: Option<&str>) -> (Verdict, Now) {
        // A wall clock that a test can write as a date.
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let now = Now { instant: Instant::now(), wall };
        let mut answer = Response::builder().status(code);
        if let Some(retry) = retry {
            answer = answer.header(RETRY_AFTER, retry);
        }
        (Verdict::of(&answer.body(()).unwrap(), &PERMANENT, now), now)
    }

    #[test]
    fn each_answer_has_its_meaning() {
        for code in 200..=204 {
            assert_eq!(verdict(code, None).0, Verdict::Accepted);
        }
        for code in PERMANENT {
            assert!(matches!(verdict(code, None).0, Verdict::Permanent(_)), "{code}");
        }
        for code in [205, 206, 402, 408, 409, 418, 500, 502, 503, 504] {
            assert!(matches!(verdict(code, None).0, Verdict::Unknown(_)), "{code}");
        }
        for code in [301, 302, 307, 308, 401, 403, 404, 405, 501] {
            assert!(matches!(verdict(code, None).0, Verdict::Unavailable(_)), "{code}");
        }
        assert!(matches!(verdict(410, None).0, Verdict::Gone(_)));
    }

    #[test]
    fn an_endpoint_is_left_alone_as_long_as_it_asks() {
        for (code, retry, secs) in [
            (429, None, 10),
            (429, Some("7"), 7),
            (503, Some("7"), 7),
            (429, Some("Sun, 06 Nov 1994 08:50:07 GMT"), 30),
            (429, Some("Sun, 06 Nov 1994 08:00:00 GMT"), 0),
            (429, Some("999999999"), 3600),
            (429, Some("soon"), 10),
        ] {
            let (verdict, now) = verdict(code, retry);
            let Verdict::Busy(until, _) = verdict else { panic!("{code} {retry:?}") };
            assert_eq!(until - now.instant, Duration::from_secs(secs), "{code} {retry:?}");
        }
    }

    #[test]
    fn what_refuses_a_batch_refuses_none_of_its_records() {
        let refused = || verdict(400, None).0;
        assert!(matches!(refused().of_record(), Outcome::Refused(_)));
        assert!(matches!(refused().of_group(), Outcome::BatchRefused(_)));
    }
}
