//! Numbers of clients, compared with those of conditions.

use std::cmp::Ordering;

use policy::Number;

/// A number of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quantity {
    /// With all its digits.
    Exact(Number),
    /// One that has too many digits, as floating point.
    Rounded(f64),
}

impl Quantity {
    /// Of a number as JSON writes it.
    pub(super) fn of(number: &serde_json::Number) -> Self {
        if let Some(integer) = number.as_i64() {
            return Self::Exact(integer.into());
        }
        let text = number.as_str();
        match Number::parse(text) {
            Some(exact) => Self::Exact(exact),
            None => Self::Rounded(text.parse().unwrap_or(f64::NAN)),
        }
    }

    pub(super) fn compare(&self, other: &Number) -> Option<Ordering> {
        match self {
            Self::Exact(number) => Some(number.cmp(other)),
            Self::Rounded(float) => float.partial_cmp(&other.to_string().parse().ok()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_exactly_where_they_can_be() {
        for (json, other, expected) in [
            ("7", "7", Ordering::Equal),
            ("7.0", "7", Ordering::Equal),
            ("9007199254740993", "9007199254740992", Ordering::Greater),
            ("0.1", "0.10000000000000001", Ordering::Less),
            ("1e300", "5", Ordering::Greater),
            ("-1e999", "5", Ordering::Less),
            ("1e-300", "0", Ordering::Greater),
        ] {
            let number: serde_json::Number = serde_json::from_str(json).expect("a number");
            let other = Number::parse(other).expect("a number");
            assert_eq!(Quantity::of(&number).compare(&other), Some(expected), "{json} {other}");
        }
    }
}
