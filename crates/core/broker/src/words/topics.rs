//! Which topics and filters there may be, for whoever brings one: the API, the command line, the
//! configuration, access rules. The characters are judged as in a packet (`codec`), the levels as
//! everywhere (`topic`).

use codec::Violation;
use thiserror::Error;
use topic::{Filter, TopicError, TopicLimits};

/// Why a topic or a filter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    #[error("{}", .0.detail)]
    Characters(Violation),
    #[error("{0}")]
    Levels(#[from] TopicError),
}

/// Accepts the name of a topic to publish to.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_topic(name: &str, limits: &TopicLimits) -> Result<(), NameError> {
    check_characters(name)?;
    Ok(topic::check_topic(name, limits)?)
}

/// Accepts a filter as such; `$share/` has no meaning here, see [`parse_filter`].
///
/// # Errors
///
/// What is wrong with it.
pub fn check_filter(filter: &str, limits: &TopicLimits) -> Result<(), NameError> {
    check_characters(filter)?;
    Ok(topic::check_filter(filter, limits)?)
}

/// Accepts a filter to subscribe to, which may be shared.
///
/// # Errors
///
/// What is wrong with it.
pub fn parse_filter<'a>(filter: &'a str, limits: &TopicLimits) -> Result<Filter<'a>, NameError> {
    check_characters(filter)?;
    Ok(topic::parse_filter(filter, limits)?)
}

/// Whether a client may publish there: it could be retained by an older version all the same.
pub(crate) fn is_published(topic: &str) -> bool {
    check_topic(topic, &UNLIMITED).is_ok()
        && !topic.starts_with("$SYS/")
        && topic::reserved(topic).is_none()
}

fn check_characters(name: &str) -> Result<(), NameError> {
    codec::check_name(name).map_err(NameError::Characters)
}

/// For filters that were checked when they were subscribed.
pub(crate) const UNLIMITED: TopicLimits = TopicLimits { levels_max: u16::MAX, bytes_max: u16::MAX };
