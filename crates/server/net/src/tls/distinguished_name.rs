//! Distinguished names as text (RFC 4514), for comparison with the subject of a certificate.
//!
//! Two texts may stand for one name: case of the attribute types, object identifiers instead of
//! short names, kinds of escapes, spaces around separators, and the order within one part. So names
//! are compared as what they stand for. The order of the parts, and the values, have to be equal.

use std::fmt;

use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::oid::db::{rfc3280, rfc4519};

/// Its parts, in the order of the text. The attributes of a part are sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DistinguishedName(Vec<Vec<(String, String)>>);

/// Is this text meant as a distinguished name? It then begins with the type of an attribute.
pub fn is_distinguished_name(text: &str) -> bool {
    text.split_once('=').is_some_and(|(kind, _)| kind_of(kind).is_some())
}

impl DistinguishedName {
    /// # Errors
    ///
    /// Where it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut part, mut rest) = (Vec::new(), Vec::new(), text);
        loop {
            let (kind, behind) = rest.split_once('=').ok_or_else(|| {
                format!("'{rest}' must be an attribute of a distinguished name, TYPE=VALUE")
            })?;
            let kind = kind_of(kind).ok_or_else(|| {
                format!("'{}' must be a type such as CN, or an object identifier", kind.trim())
            })?;
            let (value, separator, behind) = value_of(behind)?;
            part.push((kind, value));
            if separator != Some('+') {
                part.sort_unstable();
                parts.push(std::mem::take(&mut part));
            }
            if separator.is_none() {
                return Ok(Self(parts));
            }
            rest = behind;
        }
    }
}

/// As RFC 4514 writes it: equal names are equal texts.
impl fmt::Display for DistinguishedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.0.iter().enumerate() {
            for (at, (kind, value)) in part.iter().enumerate() {
                let separator = match (number, at) {
                    (0, 0) => "",
                    (_, 0) => ",",
                    _ => "+",
                };
                write!(f, "{separator}{kind}={}", escaped(value))?;
            }
        }
        Ok(())
    }
}

/// The type as it is compared: a short name, or an object identifier that has none.
fn kind_of(text: &str) -> Option<String> {
    let text = text.trim();
    let text = match text.get(..4) {
        Some(prefix) if prefix.eq_ignore_ascii_case("oid.") => &text[4..],
        _ => text,
    };
    let known = ATTRIBUTES
        .iter()
        .find(|(id, name)| name.eq_ignore_ascii_case(text) || id.to_string() == text);
    if let Some((_, name)) = known {
        return Some((*name).to_owned());
    }
    if let Some((_, name)) = OTHER_NAMES.iter().find(|(own, _)| own.eq_ignore_ascii_case(text)) {
        return Some((*name).to_owned());
    }
    ObjectIdentifier::new(text).ok().map(|id| id.to_string())
}

/// The value at the beginning of a text, the separator that ends it, and what is behind that.
fn value_of(text: &str) -> Result<(String, Option<char>, &str), String> {
    let text = text.trim_start_matches(' ');
    match text.chars().next() {
        Some('"') => quoted(&text[1..]),
        Some('#') => Err(format!("'{text}': write the value as text, not in hexadecimal")),
        _ => plain(text),
    }
}

/// RFC 2253 writes a value in quotes; RFC 4514 still reads it.
fn quoted(text: &str) -> Result<(String, Option<char>, &str), String> {
    let mut value = Vec::new();
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => {
                let rest = text[at + 1..].trim_start_matches(' ');
                let separator = rest.chars().next();
                if separator.is_some_and(|sign| !is_separator(sign)) {
                    return Err(format!("'{rest}' follows a value in quotes"));
                }
                return Ok((in_utf8(value)?, separator, rest.get(1..).unwrap_or_default()));
            }
            '\\' => value.extend(unescaped(&mut signs)?),
            _ => value.extend(sign.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    Err("a value in quotes does not end".to_owned())
}

fn plain(text: &str) -> Result<(String, Option<char>, &str), String> {
    let (mut value, mut spaces) = (Vec::new(), 0);
    let mut signs = text.char_indices();
    let mut ended = None;
    while let Some((at, sign)) = signs.next() {
        match sign {
            '\\' => {
                value.extend(std::iter::repeat_n(b' ', std::mem::take(&mut spaces)));
                value.extend(unescaped(&mut signs)?);
            }
            // Those at the end of a value belong to the separator.
            ' ' => spaces += 1,
            sign if is_separator(sign) => {
                ended = Some((sign, &text[at + 1..]));
                break;
            }
            '"' | '<' | '>' => return Err(format!("'{sign}' must be escaped by a backslash")),
            _ => {
                value.extend(std::iter::repeat_n(b' ', std::mem::take(&mut spaces)));
                value.extend(sign.encode_utf8(&mut [0; 4]).bytes());
            }
        }
    }
    let (separator, behind) = ended.map_or((None, ""), |(sign, rest)| (Some(sign), rest));
    Ok((in_utf8(value)?, separator, behind))
}

/// RFC 2253 reads a semicolon as a comma.
fn is_separator(sign: char) -> bool {
    matches!(sign, ',' | ';' | '+')
}

/// What a backslash stands for with what is behind it: a sign, or a byte in hexadecimal.
fn unescaped(signs: &mut std::str::CharIndices<'_>) -> Result<Vec<u8>, String> {
    let fault = || "a backslash must escape a sign, or be followed by two hexadecimal digits";
    let (_, first) = signs.next().ok_or_else(fault)?;
    let Some(high) = first.to_digit(16) else {
        return match first.is_ascii_punctuation() || first == ' ' {
            true => Ok(vec![first as u8]),
            false => Err(fault().to_owned()),
        };
    };
    let low = signs.next().and_then(|(_, second)| second.to_digit(16)).ok_or_else(fault)?;
    Ok(vec![(high * 16 + low) as u8])
}

fn in_utf8(value: Vec<u8>) -> Result<String, String> {
    String::from_utf8(value).map_err(|_| "the bytes of a value must be UTF-8".to_owned())
}

/// RFC 4514, section 2.4.
pub(super) fn escaped(value: &str) -> String {
    let mut out = String::new();
    for (at, character) in value.char_indices() {
        let is_last = at + character.len_utf8() == value.len();
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => out.extend(['\\', character]),
            '#' if at == 0 => out.push_str("\\#"),
            ' ' if at == 0 || is_last => out.push_str("\\ "),
            '\0' => out.push_str("\\00"),
            _ => out.push(character),
        }
    }
    out
}

/// The short names of RFC 4514 and of RFC 2985's e-mail address.
pub(super) const ATTRIBUTES: [(ObjectIdentifier, &str); 11] = [
    (rfc4519::CN, "CN"),
    (rfc4519::SERIAL_NUMBER, "serialNumber"),
    (rfc4519::C, "C"),
    (rfc4519::L, "L"),
    (rfc4519::ST, "ST"),
    (rfc4519::STREET, "STREET"),
    (rfc4519::O, "O"),
    (rfc4519::OU, "OU"),
    (rfc4519::DC, "DC"),
    (rfc4519::UID, "UID"),
    (rfc3280::EMAIL_ADDRESS, "emailAddress"),
];

/// Names that programs use in addition, and the ones above that they stand for.
const OTHER_NAMES: [(&str, &str); 10] = [
    ("commonName", "CN"),
    ("countryName", "C"),
    ("localityName", "L"),
    ("stateOrProvinceName", "ST"),
    ("S", "ST"),
    ("organizationName", "O"),
    ("organizationalUnitName", "OU"),
    ("domainComponent", "DC"),
    ("userId", "UID"),
    ("E", "emailAddress"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DistinguishedName {
        DistinguishedName::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn texts_for_the_same_name_are_equal() {
        for same in [
            &[
                "CN=boss,O=corp",
                "cn=boss, o=corp",
                "2.5.4.3=boss;OID.2.5.4.10=corp",
                "CN = boss , O = corp",
                "CN=\\62oss,O=\"corp\"",
                "commonName=boss,organizationName=corp",
            ][..],
            &["CN=a+OU=b,O=c", "OU=b+CN=a,O=c", "ou = b + cn = a,O=c"],
            &["CN=Weaver\\, Birds", "CN=\"Weaver, Birds\"", "CN=Weaver\\2C Birds"],
            &["CN=\\ a\\ ", "CN=\" a \"", "CN=\\20a\\20"],
            &["CN=ü", "CN=\\C3\\BC", "CN=\\c3\\bc"],
            &["CN=\\#a", "CN=\"#a\""],
            &["CN=", "CN= ", "CN=\"\""],
            &["1.2.3.4=x", "oid.1.2.3.4=x"],
            &["emailAddress=a@b", "E=a@b"],
        ] {
            for text in same {
                assert_eq!(name(text), name(same[0]), "{text}");
                assert_eq!(name(text).to_string(), name(same[0]).to_string());
            }
            assert_eq!(name(&name(same[0]).to_string()), name(same[0]));
        }
    }

    #[test]
    fn other_names_are_not_equal() {
        let others = [
            "CN=boss,O=corp",
            "O=corp,CN=boss",
            "CN=boss+O=corp",
            "CN=boss\\,O=corp",
            "CN=Boss,O=corp",
            "CN=boss",
            "CN=boss,O=corp,C=DE",
            "CN=\"CN=boss,O=corp\"",
            "CN=boss,OU=corp",
            "CN=boss,O=corp\\ ",
            "CN=boss,CN=boss,O=corp",
        ];
        for (at, one) in others.iter().enumerate() {
            for other in &others[at + 1..] {
                assert_ne!(name(one), name(other));
            }
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "CN=a,",
            "CN=a,O",
            "CN=a+",
            "CN=a\\",
            "CN=a\\x",
            "CN=a\\4",
            "CN=\"a",
            "CN=\"a\"b",
            "CN=#0403",
            "CN=a<b",
            "CN=\\ff",
            "X=a",
            "CN=a,X=b",
            "",
            "=a",
            "CN",
        ] {
            assert!(DistinguishedName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_begins_with_a_type() {
        for text in ["CN=a", "cn = a,", "2.5.4.3=a", "E=a", "1.2.3=", "ou=x"] {
            assert!(is_distinguished_name(text), "{text}");
        }
        for text in ["a", "a=b", "pump-1", "x,CN=a", "1=a", "", "="] {
            assert!(!is_distinguished_name(text), "{text}");
        }
    }
}
