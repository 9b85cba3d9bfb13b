//! Moments as people write them: `2026-12-31T23:59:59Z`.

use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

/// Seconds since 1970, from such a number or from a moment of RFC 3339. None: it is neither, or
/// earlier.
pub fn secs_of(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| {
        let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        moment.unix_timestamp().try_into().ok()
    })
}

/// Seconds since 1970 as text. What is later than the year 9999 is its end.
pub fn text_of(secs: u64) -> String {
    // Each moment up to the end of 9999 has such a text.
    at(secs).format(&Rfc3339).unwrap_or_default()
}

/// A time since 1970 as text, to the microsecond.
pub fn text_with_micros(since_epoch: Duration) -> String {
    let format =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    let moment =
        at(since_epoch.as_secs()) + Duration::from_nanos(since_epoch.subsec_nanos().into());
    moment.format(format).unwrap_or_default()
}

fn at(secs: u64) -> OffsetDateTime {
    let secs = secs.min(SECS_MAX) as i64;
    OffsetDateTime::from_unix_timestamp(secs).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The last second of the year 9999.
const SECS_MAX: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read() {
        assert_eq!(secs_of("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(secs_of("2000-02-29T12:00:01Z"), Some(951_825_601));
        assert_eq!(secs_of("2026-12-31T23:59:59Z"), Some(1_798_761_599));
        assert_eq!(secs_of("2027-01-01T00:59:59+01:00"), Some(1_798_761_599));
        assert_eq!(secs_of("17"), Some(17));
        for wrong in [
            "",
            "tomorrow",
            "2026-13-01T00:00:00Z",
            "2026-12-31T24:00:00Z",
            "2026-02-29T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "-1",
        ] {
            assert_eq!(secs_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn moments_are_read_as_they_were_written() {
        assert_eq!(text_of(0), "1970-01-01T00:00:00Z");
        assert_eq!(text_of(951_825_601), "2000-02-29T12:00:01Z");
        assert_eq!(text_of(u64::MAX), "9999-12-31T23:59:59Z");
        for day in 0..60_000 {
            let secs = day * 86_400 + day;
            assert_eq!(secs_of(&text_of(secs)), Some(secs));
        }
        assert_eq!(secs_of(&text_of(SECS_MAX)), Some(SECS_MAX));
    }

    #[test]
    fn microseconds_are_written_with_six_digits() {
        let leap_day = Duration::from_secs(951_825_601);
        assert_eq!(text_with_micros(leap_day), "2000-02-29T12:00:01.000000Z");
        let later = leap_day + Duration::from_nanos(1_234_999);
        assert_eq!(text_with_micros(later), "2000-02-29T12:00:01.001234Z");
    }
}
