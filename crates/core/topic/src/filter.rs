//! The rules of topic names and filters: sections 4.7 and 4.8 of both standards.

use std::borrow::Cow;

use thiserror::Error;

/// How long and how deep a topic name or filter may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicLimits {
    /// Levels at most; `a/b` has two, `/` has two empty ones.
    pub levels_max: u16,
    /// UTF-8 bytes at most. The standard's own limit of 65,535 holds in any case.
    pub bytes_max: u16,
}

impl Default for TopicLimits {
    /// 128 levels, and every byte the standard allows.
    fn default() -> Self {
        Self { levels_max: 128, bytes_max: u16::MAX }
    }
}

/// What a client asked to subscribe to: a filter, alone or as a member of a shared group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter<'a> {
    /// The share name of `$share/NAME/FILTER`; [`QUEUE_GROUP`] of EMQX's `$queue/FILTER`.
    pub group: Option<&'a str>,
    /// The filter that topics are matched against, without `$share/NAME/` or `$queue/`.
    pub filter: &'a str,
}

/// Why a topic name or a filter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TopicError {
    #[error("topic is empty; it needs at least one character")]
    Empty,
    #[error("topic has more than {bytes_max} bytes; shorten it or raise the limit")]
    TooLong { bytes_max: u16 },
    #[error("topic has more than {levels_max} levels; use fewer '/' or raise the limit")]
    TooDeep { levels_max: u16 },
    #[error("topic has the character U+0000; remove it")]
    Nul,
    #[error("topic name has a wildcard; '+' and '#' belong in filters only")]
    WildcardInName,
    #[error("'#' must be the last level of the filter, and alone in it")]
    MisplacedHash,
    #[error("'+' must be alone in its level of the filter")]
    MisplacedPlus,
    #[error("share name is empty; write $share/NAME/FILTER")]
    EmptyShareName,
    #[error("share name has '+' or '#'; use other characters")]
    WildcardInShareName,
    #[error("share name has no filter after it; write $share/NAME/FILTER")]
    ShareWithoutFilter,
}

impl TopicError {
    /// The MQTT 5 statement that is broken, or an empty text where only a limit of ours is.
    pub fn clause(self) -> &'static str {
        match self {
            Self::Empty => "MQTT-4.7.3-1",
            Self::TooLong { bytes_max: u16::MAX } => "MQTT-4.7.3-3",
            Self::TooLong { .. } | Self::TooDeep { .. } => "",
            Self::Nul => "MQTT-4.7.3-2",
            Self::WildcardInName => "MQTT-4.7.0-1",
            Self::MisplacedHash => "MQTT-4.7.1-1",
            Self::MisplacedPlus => "MQTT-4.7.1-2",
            Self::EmptyShareName => "MQTT-4.8.2-1",
            Self::WildcardInShareName | Self::ShareWithoutFilter => "MQTT-4.8.2-2",
        }
    }
}

/// Accepts the name of a topic to publish to.
///
/// # Errors
///
/// The first rule of section 4.7 that `name` breaks, or the limit it exceeds.
pub fn check_topic(name: &str, limits: &TopicLimits) -> Result<(), TopicError> {
    check_size(name, limits)?;
    check_nul(name)?;
    if name.bytes().any(|byte| byte == b'+' || byte == b'#') {
        return Err(TopicError::WildcardInName);
    }
    Ok(())
}

/// Accepts a filter as such; `$share/` has no meaning here, see [`parse_filter`].
///
/// # Errors
///
/// The first rule of section 4.7 that `filter` breaks, or the limit it exceeds.
pub fn check_filter(filter: &str, limits: &TopicLimits) -> Result<(), TopicError> {
    check_size(filter, limits)?;
    check_nul(filter)?;
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let is_last = levels.peek().is_none();
        if level.contains('#') && !(level == "#" && is_last) {
            return Err(TopicError::MisplacedHash);
        }
        if level.contains('+') && level != "+" {
            return Err(TopicError::MisplacedPlus);
        }
    }
    Ok(())
}

/// Splits what a SUBSCRIBE or UNSUBSCRIBE names into group and filter, and checks both.
///
/// Share names mean the same to 3.1.1 clients as to MQTT 5 ones. The limits hold for the share name
/// and for the filter after it; the standard's 65,535 bytes hold for the whole by its wire format.
///
/// # Errors
///
/// The first rule of sections 4.7 and 4.8.2 that `filter` breaks, or the limit it exceeds.
pub fn parse_filter<'a>(filter: &'a str, limits: &TopicLimits) -> Result<Filter<'a>, TopicError> {
    if let Some(filter) = queued(filter) {
        check_filter(filter, limits)?;
        return Ok(Filter { group: Some(QUEUE_GROUP), filter });
    }
    let Some(shared) = filter.strip_prefix(SHARE) else {
        check_filter(filter, limits)?;
        return Ok(Filter { group: None, filter });
    };
    let (group, filter) = shared.split_once('/').unwrap_or((shared, ""));
    if group.is_empty() {
        return Err(TopicError::EmptyShareName);
    }
    if group.contains(['+', '#']) {
        return Err(TopicError::WildcardInShareName);
    }
    check_nul(group)?;
    if group.len() > usize::from(limits.bytes_max) {
        return Err(TopicError::TooLong { bytes_max: limits.bytes_max });
    }
    if filter.is_empty() {
        return Err(TopicError::ShareWithoutFilter);
    }
    check_filter(filter, limits)?;
    Ok(Filter { group: Some(group), filter })
}

/// The filter that a SUBSCRIBE is about, without `$share/NAME/` or `$queue/`. It is not checked.
pub fn without_share(filter: &str) -> &str {
    let shared = || filter.strip_prefix(SHARE)?.split_once('/').map(|(_, filter)| filter);
    queued(filter).or_else(shared).unwrap_or(filter)
}

/// The one spelling of a filter that can be written in two ways: `$queue/FILTER` is
/// `$share/$queue/FILTER`.
pub fn canonical(filter: &str) -> Cow<'_, str> {
    match queued(filter) {
        Some(filter) => format!("{SHARE}{QUEUE_GROUP}/{filter}").into(),
        None => filter.into(),
    }
}

/// The beginning of a name that never is a topic: it has a meaning here or in EMQX. Nothing is
/// published below it, and no filter that is left by [`without_share`] may begin with it.
#[inline]
pub fn reserved(name: &str) -> Option<&'static str> {
    if !name.starts_with('$') {
        return None;
    }
    RESERVED.into_iter().find(|prefix| name.starts_with(prefix))
}

/// What stands behind `$queue/`, if there is anything.
fn queued(filter: &str) -> Option<&str> {
    filter.strip_prefix(QUEUE).filter(|filter| !filter.is_empty())
}

/// Does `filter` match `topic`? Both are taken as valid.
///
/// This is the rule itself, written to be read; [`crate::Index`] answers the same for millions of
/// filters at once.
pub fn matches(filter: &str, topic: &str) -> bool {
    // MQTT-4.7.2-1: a leading wildcard does not reach topics that begin with `$`.
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut wanted = filter.split('/');
    let mut levels = topic.split('/');
    loop {
        match (wanted.next(), levels.next()) {
            // Also after the last level: `sport/#` matches `sport`.
            (Some("#"), _) => return true,
            (Some("+"), Some(_)) => {}
            (Some(literal), Some(level)) if literal == level => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Is there a topic that both filters match? Both are taken as valid.
pub fn overlap(one: &str, other: &str) -> bool {
    let is_shy = |one: &str, other: &str| one.starts_with(['+', '#']) && other.starts_with('$');
    // MQTT-4.7.2-1, as above.
    if is_shy(one, other) || is_shy(other, one) {
        return false;
    }
    let (mut ones, mut others) = (one.split('/'), other.split('/'));
    loop {
        match (ones.next(), others.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some("+"), Some(_)) | (Some(_), Some("+")) => {}
            (Some(level), Some(same)) if level == same => {}
            _ => return false,
        }
    }
}

/// Is there a wildcard level in this (valid) filter?
pub fn has_wildcard(filter: &str) -> bool {
    filter.bytes().any(|byte| byte == b'+' || byte == b'#')
}

/// Accepts the size of a name or filter, for whoever knows that its characters are in order: the
/// names of decoded packets have been looked at.
///
/// # Errors
///
/// It is empty, or exceeds a limit.
#[inline]
pub fn check_size(text: &str, limits: &TopicLimits) -> Result<(), TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    if text.len() > usize::from(limits.bytes_max) {
        return Err(TopicError::TooLong { bytes_max: limits.bytes_max });
    }
    // A short text cannot have too many levels: only a long one is read for its separators.
    let levels_max = usize::from(limits.levels_max);
    if text.len() >= levels_max && text.split('/').count() > levels_max {
        return Err(TopicError::TooDeep { levels_max: limits.levels_max });
    }
    Ok(())
}

fn check_nul(text: &str) -> Result<(), TopicError> {
    if text.contains('\0') { Err(TopicError::Nul) } else { Ok(()) }
}

/// The beginning of a shared subscription's filter.
pub const SHARE: &str = "$share/";

/// The same in EMQX, for all clients that name no group.
pub const QUEUE: &str = "$queue/";

/// The group of those clients.
pub const QUEUE_GROUP: &str = "$queue";

/// In EMQX: a filter that one client has at a time.
pub const EXCLUSIVE: &str = "$exclusive/";

/// In EMQX: a message that is published later, as in `$delayed/60/TOPIC`.
pub const DELAYED: &str = "$delayed/";

/// In EMQX: commands of a file transfer, which the server answers in the acknowledgement.
pub const FILE: &str = "$file/";

/// The same, answered on a topic of the client.
pub const FILE_ASYNC: &str = "$file-async/";

const RESERVED: [&str; 6] = [SHARE, QUEUE, EXCLUSIVE, DELAYED, FILE, FILE_ASYNC];

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TopicLimits = TopicLimits { levels_max: 4, bytes_max: 16 };

    #[test]
    fn sizes_are_accepted_up_to_the_limit_and_refused_above() {
        assert_eq!(check_topic("a/b/c/d", &LIMITS), Ok(()));
        assert_eq!(check_topic("a/b/c/d/", &LIMITS), Err(TopicError::TooDeep { levels_max: 4 }));
        assert_eq!(check_filter("0123456789abcdef", &LIMITS), Ok(()));
        assert_eq!(
            check_filter("0123456789abcdefg", &LIMITS),
            Err(TopicError::TooLong { bytes_max: 16 })
        );
    }

    #[test]
    fn share_name_and_filter_each_have_the_limits_for_themselves() {
        let shared = "$share/a-group-of-some/a/b/c/d";
        assert_eq!(parse_filter(shared, &LIMITS).map(|parsed| parsed.filter), Ok("a/b/c/d"));
        assert_eq!(
            parse_filter("$share/a-group-with-a-long-name/a", &LIMITS),
            Err(TopicError::TooLong { bytes_max: 16 })
        );
        assert_eq!(
            parse_filter("$share/g/a/b/c/d/e", &LIMITS),
            Err(TopicError::TooDeep { levels_max: 4 })
        );
    }

    #[test]
    fn a_queue_of_emqx_is_a_shared_subscription_without_a_name() {
        let queue = |filter| Ok(Filter { group: Some("$queue"), filter });
        assert_eq!(parse_filter("$queue/a/+", &LIMITS), queue("a/+"));
        assert_eq!(parse_filter("$share/$queue/a/+", &LIMITS), queue("a/+"));
        assert_eq!(canonical("$queue/a/+"), "$share/$queue/a/+");
        assert_eq!(parse_filter("$queue/a#", &LIMITS), Err(TopicError::MisplacedHash));
        // They name no filter, so they are about the very topic, below which nothing is published.
        for plain in ["$queue", "$queue/", "a/$queue/b", "$queued/a"] {
            assert_eq!(parse_filter(plain, &LIMITS), Ok(Filter { group: None, filter: plain }));
            assert_eq!((canonical(plain).as_ref(), without_share(plain)), (plain, plain));
        }
    }

    #[test]
    fn names_with_a_meaning_are_known_behind_a_share_name() {
        for (text, filter, prefix) in [
            ("$share/g/a/b", "a/b", None),
            ("$queue/a/b", "a/b", None),
            ("$exclusive/a", "$exclusive/a", Some("$exclusive/")),
            ("$share/g/$delayed/9/a", "$delayed/9/a", Some("$delayed/")),
            ("$queue/$queue/a", "$queue/a", Some("$queue/")),
            ("$share/g/$share/h/a", "$share/h/a", Some("$share/")),
            ("$share/g", "$share/g", Some("$share/")),
            ("$queue/", "$queue/", Some("$queue/")),
            ("$file/f1/init", "$file/f1/init", Some("$file/")),
            ("$share/g/$file-async/#", "$file-async/#", Some("$file-async/")),
            ("$files/a", "$files/a", None),
            ("$SYS/a", "$SYS/a", None),
            ("$delayed", "$delayed", None),
            ("a/$delayed/9", "a/$delayed/9", None),
        ] {
            assert_eq!((without_share(text), reserved(without_share(text))), (filter, prefix));
        }
    }

    #[test]
    fn filters_overlap_if_a_topic_matches_both() {
        for (one, other, is_common) in [
            ("a/b", "a/b", true),
            ("a/b", "a/c", false),
            ("a", "a/b", false),
            ("#", "a/b/c", true),
            ("a/#", "a", true),
            ("a/#", "+", true),
            ("a/#", "b/#", false),
            ("+/b", "a/+", true),
            ("+/b", "a/+/c", false),
            ("a/+/c/#", "+/b/#", true),
            ("#", "$SYS/x", false),
            ("+/x", "$SYS/#", false),
            ("$SYS/+", "$SYS/x", true),
            ("a/", "a/+", true),
        ] {
            assert_eq!(overlap(one, other), is_common, "{one} {other}");
            assert_eq!(overlap(other, one), is_common, "{other} {one}");
        }
    }

    #[test]
    fn only_the_standards_own_byte_limit_names_a_clause() {
        assert_eq!(TopicError::TooLong { bytes_max: u16::MAX }.clause(), "MQTT-4.7.3-3");
        assert_eq!(TopicError::TooLong { bytes_max: 100 }.clause(), "");
    }
}
