//! Sizes, times, counts and rates as EMQX writes them.

/// `infinity` is None.
pub(super) fn count(text: &str) -> Result<Option<i64>, String> {
    match text {
        "infinity" => Ok(None),
        _ => match text.parse::<i64>() {
            Ok(number) if number >= 0 => Ok(Some(number)),
            _ => Err(format!("must be a number from 0 or infinity, got '{text}'")),
        },
    }
}

/// Seconds, at least 1 of a time above 0; a number alone is in milliseconds.
pub(super) fn seconds(text: &str) -> Result<Option<i64>, String> {
    if text == "infinity" {
        return Ok(None);
    }
    let wrong = || format!("must be a time such as 30s or 2h, got '{text}'");
    if let Ok(millis) = text.parse::<u32>() {
        return Ok(Some(i64::from(millis.div_ceil(1_000))));
    }
    let (mut millis, mut rest) = (0_i64, text.trim());
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|it: char| it.is_ascii_digit()).len();
        let number: i64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = rest[digits..].trim_start();
        let letters = rest.len() - rest.trim_start_matches(|it: char| it.is_alphabetic()).len();
        let unit = TIMES.iter().find(|(unit, _)| *unit == rest[..letters].to_lowercase());
        let (_, factor) = unit.ok_or_else(wrong)?;
        let part = number.checked_mul(*factor).ok_or_else(wrong)?;
        millis = millis.checked_add(part).ok_or_else(wrong)?;
        rest = rest[letters..].trim_start();
    }
    Ok(Some(millis / 1_000 + i64::from(millis % 1_000 > 0)))
}

/// Bytes; units are powers of 1024.
pub(super) fn bytes(text: &str) -> Result<Option<i64>, String> {
    if text == "infinity" {
        return Ok(None);
    }
    let wrong = || format!("must be a size such as 1MB, got '{text}'");
    let lower = text.trim().to_lowercase();
    let (number, factor) = SIZES
        .iter()
        .find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?.trim(), *factor)))
        .unwrap_or((&lower, 1));
    let number: i64 = number.parse().map_err(|_| wrong())?;
    if number < 0 {
        return Err(wrong());
    }
    number.checked_mul(factor).map(Some).ok_or_else(wrong)
}

/// So many each second: `100/s`, `10MB/10s`.
pub(super) fn rate(text: &str) -> Result<Option<i64>, String> {
    if text == "infinity" {
        return Ok(None);
    }
    let wrong = || format!("must be a rate such as 1000/s, got '{text}'");
    // A second may be left out.
    let (amount, time) = text.split_once('/').unwrap_or((text, "s"));
    let amount = bytes(amount).map_err(|_| wrong())?.ok_or_else(wrong)?;
    let time = match time.trim() {
        unit if unit.starts_with(|it: char| it.is_ascii_digit()) => unit.to_owned(),
        unit => format!("1{unit}"),
    };
    let seconds = seconds(&time).map_err(|_| wrong())?.filter(|seconds| *seconds > 0);
    Ok(Some((amount / seconds.ok_or_else(wrong)?).max(1)))
}

pub(super) fn flag(text: &str) -> Result<bool, String> {
    match text {
        "true" | "on" | "yes" => Ok(true),
        "false" | "off" | "no" => Ok(false),
        _ => Err(format!("must be true or false, got '{text}'")),
    }
}

/// In milliseconds.
const TIMES: [(&str, i64); 6] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 604_800_000),
];

const SIZES: [(&str, i64); 6] =
    [("kb", 1 << 10), ("mb", 1 << 20), ("gb", 1 << 30), ("k", 1 << 10), ("m", 1 << 20), ("b", 1)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_emqx() {
        assert_eq!(seconds("1h30m"), Ok(Some(5_400)));
        assert_eq!(seconds("15s"), Ok(Some(15)));
        assert_eq!(seconds("1500"), Ok(Some(2)));
        assert_eq!(seconds("100ms"), Ok(Some(1)));
        assert_eq!(seconds("infinity"), Ok(None));
        assert_eq!(bytes("1MB"), Ok(Some(1 << 20)));
        assert_eq!(bytes("512"), Ok(Some(512)));
        assert_eq!(rate("1000/s"), Ok(Some(1_000)));
        assert_eq!(rate("10MB/10s"), Ok(Some(1 << 20)));
        assert_eq!(rate("1000"), Ok(Some(1_000)));
        assert_eq!(rate("10MB"), Ok(Some(10 << 20)));
        for text in ["", "x", "1x", "-1s", "9999999999999999999h"] {
            assert!(text.is_empty() || seconds(text).is_err(), "{text}");
            assert!(bytes(text).is_err() && rate(text).is_err() && count(text).is_err(), "{text}");
        }
    }
}
