//! Numbers as people read them, and the escapes of the formats.

use time::OffsetDateTime;
use time::macros::format_description;

/// `50,000`, `1.58`, `0.27`: about three significant digits, thousands set apart.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        _ if !value.is_finite() => return "–".to_owned(),
        _ if size >= 100.0 || value == value.trunc() => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 0.1 => 2,
        // Two digits that say something, down to the smallest scale.
        _ => (1 - size.log10().floor() as i32).unsigned_abs().min(DIGITS_MAX) as usize,
    };
    let text = format!("{value:.digits$}");
    // A scale of 0.05 is no more precise for a nought behind it.
    let is_small = size < 0.1 && digits > 0;
    grouped(if is_small { text.trim_end_matches('0').trim_end_matches('.') } else { &text })
}

pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// `1 client`, `2,000 clients`.
pub fn counted(value: u64, one: &str) -> String {
    format!("{} {one}{}", count(value), if value == 1 { "" } else { "s" })
}

/// With so many digits behind the point.
pub fn fixed(value: f64, digits: usize) -> String {
    grouped(&format!("{value:.digits$}"))
}

fn grouped(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, fraction) = rest.split_once('.').map_or((rest, None), |(w, f)| (w, Some(f)));
    let mut out = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// `850 us`, `1.58 ms`, `2.14 s`.
pub fn micros(us: f64) -> String {
    match us {
        _ if us >= 1e6 => format!("{} s", number(us / 1e6)),
        _ if us >= 1e3 => format!("{} ms", number(us / 1e3)),
        _ => format!("{} us", number(us.round())),
    }
}

/// `1.2 KB`, `340 MB`; decimal.
pub fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes, 0);
    while value.abs() >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{} {}", number(value), UNITS[unit])
}

pub fn seconds(secs: f64) -> String {
    match secs {
        _ if secs >= 3600.0 => format!("{} h", number(secs / 3600.0)),
        _ if secs >= 120.0 => format!("{} min", number(secs / 60.0)),
        _ => format!("{} s", number((secs * 10.0).round() / 10.0)),
    }
}

/// `2026-11-21 02:19:24 UTC`.
pub fn date(unix_ms: u64) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second] UTC");
    let moment = OffsetDateTime::from_unix_timestamp((unix_ms / 1000) as i64);
    // Results of another program may have any number there.
    moment
        .ok()
        .and_then(|moment| moment.format(format).ok())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// A cell of a Markdown table.
pub fn markdown(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// A field of a CSV file (RFC 4180).
pub fn csv(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Behind the point.
const DIGITS_MAX: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_keep_two_digits() {
        let shown: Vec<String> =
            [0.05, 0.015, 0.000_01, 0.000_012_34, 1e-12, -0.002].map(number).to_vec();
        assert_eq!(shown, ["0.05", "0.015", "0.00001", "0.000012", "0", "-0.002"]);
    }

    #[test]
    fn a_fixed_number_of_digits_has_its_thousands_apart() {
        assert_eq!(fixed(2_457_245.4, 0), "2,457,245");
        assert_eq!(fixed(0.4, 2), "0.40");
        assert_eq!(fixed(-1_234.5, 1), "-1,234.5");
    }

    #[test]
    fn numbers() {
        let shown: Vec<String> =
            [0.0, 0.27, 1.584, 18.25, 999.5, 50_000.0, 1_234_567.8, -1234.0].map(number).to_vec();
        assert_eq!(shown, ["0", "0.27", "1.58", "18.2", "1,000", "50,000", "1,234,568", "-1,234"]);
        assert_eq!(micros(850.0), "850 us");
        assert_eq!(micros(1580.0), "1.58 ms");
        assert_eq!(bytes(5_020_000_000.0), "5.02 GB");
        assert_eq!(seconds(1800.0), "30 min");
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_827_696_000), "2000-02-29 12:34:56 UTC");
        assert_eq!(date(1_795_227_564_000), "2026-11-21 02:19:24 UTC");
    }

    #[test]
    fn escapes() {
        assert_eq!(csv("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(markdown("a|b\nc"), "a\\|b c");
    }
}
