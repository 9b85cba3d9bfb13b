//! Why a message is refused.

use codec::{Reason, Violation};

use crate::Limits;

/// The reason code for a message that the journal does not take.
pub(crate) const fn reason_of(error: &storage::AppendError) -> Reason {
    match error {
        // MQTT 5 has no "too large" for an acknowledgement (table 3-4).
        storage::AppendError::TooLarge { .. }
        | storage::AppendError::Backlog { .. }
        | storage::AppendError::Full(_) => Reason::QUOTA_EXCEEDED,
        storage::AppendError::Poisoned(_) | storage::AppendError::Closed => {
            Reason::IMPLEMENTATION_SPECIFIC_ERROR
        }
    }
}

#[inline]
pub(crate) fn check_sizes(
    topic: &str,
    properties: codec::Properties<'_>,
    limits: &Limits,
) -> Result<(), Violation> {
    topic::check_size(topic, &limits.topic).map_err(|error| Violation {
        reason: Reason::TOPIC_NAME_INVALID,
        clause: error.clause(),
        detail: "invalid topic name, or longer than topic_bytes_max, or more levels than topic_levels_max",
    })?;
    match properties.raw().len() > limits.properties_bytes_max as usize {
        true => Err(Violation {
            reason: Reason::QUOTA_EXCEEDED,
            clause: "",
            detail: "properties larger than properties_bytes_max",
        }),
        false => Ok(()),
    }
}
