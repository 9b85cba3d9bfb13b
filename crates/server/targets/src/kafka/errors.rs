//! What an error of Kafka means for a record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use krafka::KrafkaError;
use krafka::error::{ErrorCode, ProtocolErrorKind};

use crate::batch::Outcome;

/// Whom an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// This record alone: it was refused before it joined others, or was sent by itself.
    Record,
    /// All records of a request.
    Group,
}

/// Errors that the same record will always get. All others are tried again.
const PERMANENT: [ErrorCode; 5] = [
    ErrorCode::MessageTooLarge,
    ErrorCode::RecordListTooLarge,
    ErrorCode::InvalidRecord,
    ErrorCode::InvalidTimestamp,
    ErrorCode::InvalidTopic,
];

/// The server asks for a pause. `PolicyViolation` is what Event Hubs answers to a request that it
/// has delayed for too long.
const BUSY: [ErrorCode; 2] = [ErrorCode::ThrottlingQuotaExceeded, ErrorCode::PolicyViolation];

/// Answers that are about the servers or the login, not about records. Nothing is stored.
const UNAVAILABLE: [ErrorCode; 12] = [
    ErrorCode::LeaderNotAvailable,
    ErrorCode::BrokerNotAvailable,
    ErrorCode::CoordinatorLoadInProgress,
    ErrorCode::CoordinatorNotAvailable,
    ErrorCode::NotEnoughReplicas,
    ErrorCode::ClusterAuthorizationFailed,
    ErrorCode::UnsupportedSaslMechanism,
    ErrorCode::IllegalSaslState,
    ErrorCode::UnsupportedVersion,
    ErrorCode::SecurityDisabled,
    ErrorCode::SaslAuthenticationFailed,
    ErrorCode::UnsupportedCompressionType,
];

/// What became of a record with this error.
pub(super) fn outcome(error: &KrafkaError, about: About, now: Instant) -> Outcome {
    let text: Arc<str> = error.to_string().into();
    match error {
        KrafkaError::Broker { code, .. } => outcome_of_code(*code, text, about, now),
        KrafkaError::Protocol { kind: ProtocolErrorKind::FrameTooLarge, .. } => {
            permanent(text, about)
        }
        // A record whose lengths the protocol cannot say. In answers the kind means garbage.
        KrafkaError::Protocol { kind: ProtocolErrorKind::InvalidLength, .. }
            if about == About::Record =>
        {
            Outcome::Refused(text)
        }
        KrafkaError::DeliveryTimeout { possibly_written: false, .. }
        | KrafkaError::Auth { .. }
        | KrafkaError::Config { .. } => Outcome::Unavailable(text),
        // Before a record joins others, nothing of it is written.
        KrafkaError::Network(_) | KrafkaError::Timeout { .. } if about == About::Record => {
            Outcome::Unavailable(text)
        }
        _ => Outcome::Unknown(text),
    }
}

fn outcome_of_code(code: ErrorCode, text: Arc<str>, about: About, now: Instant) -> Outcome {
    if PERMANENT.contains(&code) {
        permanent(text, about)
    } else if BUSY.contains(&code) {
        Outcome::BusyUntil(now + BUSY_PAUSE, text)
    } else if UNAVAILABLE.contains(&code) {
        Outcome::Unavailable(text)
    } else {
        Outcome::Unknown(text)
    }
}

fn permanent(text: Arc<str>, about: About) -> Outcome {
    match about {
        About::Record => Outcome::Refused(text),
        About::Group => Outcome::BatchRefused(text),
    }
}

/// Whether the producer that reported it sends nothing more.
pub(super) fn is_fatal(error: &KrafkaError) -> bool {
    error.is_fatal() || matches!(error, KrafkaError::IllegalState { .. })
}

/// Kafka says how long, but the library does not pass it on.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn of_code(code: i16, about: About) -> Outcome {
        let error = KrafkaError::broker(ErrorCode::from_i16(code), "produce to t-0 failed");
        outcome(&error, about, Instant::now())
    }

    /// All codes of Kafka 4.3, and two that nobody knows.
    #[test]
    fn an_error_is_permanent_only_by_the_list() {
        for code in (-1..=133).filter(|code| *code != 0).chain([134, 999]) {
            let (alone, group) = (of_code(code, About::Record), of_code(code, About::Group));
            match code {
                10 | 17 | 18 | 32 | 87 => {
                    assert!(matches!(alone, Outcome::Refused(_)), "{code}: {alone:?}");
                    assert!(matches!(group, Outcome::BatchRefused(_)), "{code}: {group:?}");
                }
                44 | 89 => assert!(matches!(group, Outcome::BusyUntil(..)), "{code}: {group:?}"),
                5 | 8 | 14 | 15 | 19 | 31 | 33 | 34 | 35 | 54 | 58 | 76 => {
                    assert!(matches!(group, Outcome::Unavailable(_)), "{code}: {group:?}");
                }
                _ => {
                    assert!(matches!(alone, Outcome::Unknown(_)), "{code}: {alone:?}");
                    assert!(matches!(group, Outcome::Unknown(_)), "{code}: {group:?}");
                }
            }
        }
    }

    #[test]
    fn what_may_be_stored_is_unknown() {
        let now = Instant::now();
        let of = |error: KrafkaError, about| outcome(&error, about, now);
        for error in [
            KrafkaError::delivery_timeout(true, "late"),
            KrafkaError::closed("stopped"),
            KrafkaError::out_of_order_sequence("t", 0, "lost"),
            KrafkaError::network(io::Error::other("reset")),
            KrafkaError::timeout("produce"),
        ] {
            let outcome = of(error, About::Group);
            assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
        }
        for error in [
            KrafkaError::delivery_timeout(false, "late"),
            KrafkaError::auth("wrong password"),
            KrafkaError::config("no such partition"),
            KrafkaError::network(io::Error::other("refused")),
            KrafkaError::timeout("metadata"),
        ] {
            let outcome = of(error, About::Record);
            assert!(matches!(outcome, Outcome::Unavailable(_)), "{outcome:?}");
        }
    }

    #[test]
    fn garbage_in_an_answer_is_not_the_fault_of_a_record() {
        let garbage = KrafkaError::protocol_kind(ProtocolErrorKind::InvalidLength, "-7");
        let now = Instant::now();
        assert!(matches!(outcome(&garbage, About::Group, now), Outcome::Unknown(_)));
        assert!(matches!(outcome(&garbage, About::Record, now), Outcome::Refused(_)));
    }
}
