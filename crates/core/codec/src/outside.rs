//! The rules of packets for what comes by another way than a packet: calls of an API, command
//! lines, files. Nothing gets in there that a client could not have sent.

use crate::properties::Properties;
use crate::{Version, Violation, rules, text};

/// Checks the characters and the length of a name: of a topic, a client, a user.
///
/// # Errors
///
/// The rule that a packet with this name would break.
pub fn check_name(name: &str) -> Result<(), Violation> {
    if name.len() > usize::from(u16::MAX) {
        return Err(rules::NAME_BYTES.broken(Version::V5));
    }
    text::check_name(name.as_bytes()).map(|_| ()).map_err(|rule| rule.broken(Version::V5))
}

/// Checks the properties of a PUBLISH as a client would have sent it.
///
/// # Errors
///
/// The first rule that they break.
pub fn check_publish_properties(raw: &[u8]) -> Result<(), Violation> {
    Properties::check_publish(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Property, PropertyBuf};

    #[test]
    fn a_name_is_judged_as_in_a_packet() {
        for name in ["", "a/b", "+/#", "\u{fc}", "$SYS/x"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["\0", "a\u{1}b", "a\u{7f}", "\u{85}"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name(&"x".repeat(65_535)).is_ok());
        assert!(check_name(&"x".repeat(65_536)).is_err());
    }

    #[test]
    fn properties_are_judged_as_in_a_packet() {
        let check = |property: Property<'_>| {
            let mut properties = PropertyBuf::new();
            properties.push(property);
            check_publish_properties(properties.as_properties().raw())
        };
        assert_eq!(check(Property::ResponseTopic("a/b")), Ok(()));
        assert_eq!(check(Property::User("caf\u{e9}", "+/#")), Ok(()));
        for bad in [
            Property::ResponseTopic("a/#"),
            Property::ResponseTopic("a\u{1}"),
            Property::ResponseTopic(""),
            Property::ContentType("nul\0"),
            Property::ContentType("text\u{FFFE}"),
            Property::User("line", "feed\n"),
            Property::User("tab\t", ""),
            Property::SubscriptionId(1),
            Property::WillDelaySecs(1),
        ] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
