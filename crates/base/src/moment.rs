//! Moments as people write them: `2026-12-31T23:59:59Z`.

/// Seconds since 1970, from such a number or from text. None: it is neither.
pub fn secs_of(text: &str) -> Option<u64> {
    if let Ok(secs) = text.parse() {
        return Some(secs);
    }
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, mark| -> Option<[u64; 3]> {
        let parts: Option<Vec<u64>> = text.split(mark).map(|part| part.parse().ok()).collect();
        parts?.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) =
        numbers(date, '-').zip(numbers(time, ':'))?;
    let is_time = (1970..=YEAR_MAX).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_time {
        return None;
    }
    // Years begin in March, so that the odd day is the last one.
    let year = if month < 3 { year - 1 } else { year };
    let days_before = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + days_before - DAYS_BEFORE_1970;
    Some(days * DAY_SECS + hour * 3_600 + minute * 60 + second)
}

/// Seconds since 1970 as text. What is later than the year 9999 is its end.
pub fn text_of(secs: u64) -> String {
    let secs = secs.min(SECS_MAX);
    let (days, rest) = (secs / DAY_SECS + DAYS_BEFORE_1970, secs % DAY_SECS);
    let era = days / ERA_DAYS;
    let day_of_era = days % ERA_DAYS;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month < 3);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

const YEAR_MAX: u64 = 9_999;
const SECS_MAX: u64 = 253_402_300_799;
const DAY_SECS: u64 = 86_400;
/// From the first of March of the year 0.
const DAYS_BEFORE_1970: u64 = 719_468;
/// Of 400 years.
const ERA_DAYS: u64 = 146_097;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read() {
        assert_eq!(secs_of("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(secs_of("2000-02-29T12:00:01Z"), Some(951_825_601));
        assert_eq!(secs_of("2026-12-31T23:59:59Z"), Some(1_798_761_599));
        assert_eq!(secs_of("17"), Some(17));
        for wrong in ["", "tomorrow", "2026-13-01T00:00:00Z", "2026-12-31T24:00:00Z", "-1"] {
            assert_eq!(secs_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn moments_are_read_as_they_were_written() {
        assert_eq!(text_of(0), "1970-01-01T00:00:00Z");
        assert_eq!(text_of(951_825_601), "2000-02-29T12:00:01Z");
        assert_eq!(text_of(u64::MAX), "9999-12-31T23:59:59Z");
        for day in 0..60_000 {
            let secs = day * DAY_SECS + day;
            assert_eq!(secs_of(&text_of(secs)), Some(secs));
        }
        assert_eq!(secs_of(&text_of(SECS_MAX)), Some(SECS_MAX));
    }
}
