//! Numbers that are exactly what was written: in floating point, two devices with numbers of 17
//! digits may be one.

use std::cmp::Ordering;
use std::fmt;

/// Digits of a number, before and behind the point together. One that needs more is none.
const DIGITS_MAX: u32 = 38;

/// `mantissa / 10^scale`, with the least scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    mantissa: i128,
    scale: u32,
}

impl Number {
    /// Reads a number as JSON writes it: `7`, `-2.50`, `1e3`. None: it is not one, or it has more
    /// digits than can be kept.
    pub fn parse(text: &str) -> Option<Self> {
        let (is_negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (plain, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((plain, exponent)) => (plain, exponent_of(exponent)?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = match plain.split_once('.') {
            Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
            Some(_) => return None,
            None => (plain, ""),
        };
        if !is_digits(whole) || whole.len() > 1 && whole.starts_with('0') {
            return None;
        }
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_end_matches('0');
        let Some(first) = significant.find(|digit| digit != '0') else {
            return Some(Self { mantissa: 0, scale: 0 });
        };
        // Where the point stands behind the last digit that counts; negative: so many behind it.
        let cut = i64::try_from(digits.len() - significant.len()).ok()?;
        let zeros = cut - i64::try_from(fraction.len()).ok()? + exponent;
        let significant = &significant[first..];
        let count = u32::try_from(significant.len()).ok().filter(|count| *count <= DIGITS_MAX)?;
        let mantissa: i128 = significant.parse().ok()?;
        let (mantissa, scale) = match u32::try_from(zeros) {
            Ok(zeros) if count + zeros.min(DIGITS_MAX) <= DIGITS_MAX => {
                (mantissa * 10_i128.pow(zeros), 0)
            }
            Ok(_) => return None,
            Err(_) => (mantissa, u32::try_from(-zeros).ok().filter(|it| *it <= DIGITS_MAX)?),
        };
        Some(Self { mantissa: if is_negative { -mantissa } else { mantissa }, scale })
    }

    /// Asks something of what people write, without allocating.
    pub(crate) fn with_text<T>(&self, ask: impl FnOnce(&str) -> T) -> T {
        let mut short = Short { bytes: [0; TEXT_BYTES_MAX], len: 0 };
        // It has no more digits than there is space for.
        let _ = fmt::Write::write_fmt(&mut short, format_args!("{self}"));
        ask(str::from_utf8(&short.bytes[..short.len]).unwrap_or_default())
    }

    /// What is before the point, and what is behind it in units of 10^-[`DIGITS_MAX`].
    const fn parts(&self) -> (i128, i128) {
        let unit = 10_i128.pow(self.scale);
        (self.mantissa / unit, self.mantissa % unit * 10_i128.pow(DIGITS_MAX - self.scale))
    }
}

/// Sign, digits, point, and a zero before that.
const TEXT_BYTES_MAX: usize = DIGITS_MAX as usize + 3;

struct Short {
    bytes: [u8; TEXT_BYTES_MAX],
    len: usize,
}

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        let place = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Self {
        Self { mantissa: number.into(), scale: 0 }
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// As people write it: `7`, `-2.5`, `1000`.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.mantissa < 0 { "-" } else { "" };
        let unit = 10_u128.pow(self.scale);
        let all = self.mantissa.unsigned_abs();
        let (whole, fraction) = (all / unit, all % unit);
        match self.scale as usize {
            0 => write!(f, "{sign}{whole}"),
            scale => write!(f, "{sign}{whole}.{fraction:0scale$}"),
        }
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn exponent_of(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    // More digits than these say a number that has too many itself, or 0.
    let is_short = is_digits(digits) && digits.trim_start_matches('0').len() <= 9;
    if !is_short {
        return None;
    }
    text.strip_prefix('+').unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Number {
        Number::parse(text).unwrap_or_else(|| panic!("{text} is no number"))
    }

    #[test]
    fn a_number_is_what_was_written() {
        for (text, shown) in [
            ("0", "0"),
            ("-0", "0"),
            ("0.000", "0"),
            ("0e999", "0"),
            ("7", "7"),
            ("7.0", "7"),
            ("-2.50", "-2.5"),
            ("1e3", "1000"),
            ("1.5E+2", "150"),
            ("120e-1", "12"),
            ("5e-3", "0.005"),
            ("9007199254740993", "9007199254740993"),
            ("9007199254740993.0", "9007199254740993"),
            ("18446744073709551617", "18446744073709551617"),
            ("0.10000000000000000001", "0.10000000000000000001"),
            (&"9".repeat(38), &"9".repeat(38)),
            (&format!("-0.{}", "9".repeat(38)), &format!("-0.{}", "9".repeat(38))),
        ] {
            assert_eq!(number(text).to_string(), shown, "{text}");
            number(text).with_text(|text| assert_eq!(text, shown));
        }
    }

    #[test]
    fn what_cannot_be_kept_exactly_is_no_number() {
        let long = "9".repeat(39);
        for text in [
            "",
            "-",
            "+1",
            "01",
            "1.",
            ".5",
            "1e",
            "1e+",
            "1.e1",
            "0x1",
            "inf",
            "NaN",
            "1 ",
            "--1",
            "1e39",
            "1e400",
            "1e-39",
            "1e9999999999",
            &long,
            "1_0",
            "1,5",
        ] {
            assert_eq!(Number::parse(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_have_their_order() {
        let sorted = ["-1e37", "-1.5", "-1.2", "-0.3", "0", "1e-38", "0.3", "0.30001", "1", "1e37"];
        for pair in sorted.windows(2) {
            assert!(number(pair[0]) < number(pair[1]), "{pair:?}");
        }
        assert!(number("9007199254740992") < number("9007199254740993"));
    }

    proptest! {
        #[test]
        fn integers_and_their_order_are_kept(a: i64, b: i64) {
            let (first, second) = (number(&a.to_string()), number(&b.to_string()));
            prop_assert_eq!(first, Number::from(a));
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
            prop_assert_eq!(first.to_string(), a.to_string());
        }

        #[test]
        fn what_is_shown_is_the_same_number(text in "-?[0-9]{1,20}(\\.[0-9]{1,20})?(e-?[0-9]{1,2})?") {
            if let Some(number) = Number::parse(&text) {
                prop_assert_eq!(Number::parse(&number.to_string()), Some(number));
            }
        }
    }
}
