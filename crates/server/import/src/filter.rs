//! Topic filters, as texts.

/// The filter of the topics that match both filters; none if there are none. Placeholders are texts
/// like others.
pub(crate) fn intersection(one: &str, other: &str) -> Option<String> {
    // Wildcards do not stand for a first level that begins with `$`.
    let (wild, named) = match (one.starts_with(['+', '#']), other.starts_with(['+', '#'])) {
        (true, false) => (true, other),
        (false, true) => (true, one),
        _ => (false, one),
    };
    if wild && named.starts_with('$') {
        return None;
    }
    let (mut ones, mut others) = (one.split('/'), other.split('/'));
    let mut both: Vec<&str> = Vec::new();
    loop {
        let (left, right) = (ones.next(), others.next());
        match (left, right) {
            (None, None) => break,
            (Some("#"), Some("#")) => {
                both.push("#");
                break;
            }
            // `a/#` matches `a` as well.
            (Some("#"), rest) => {
                both.extend(rest.into_iter().chain(others));
                break;
            }
            (rest, Some("#")) => {
                both.extend(rest.into_iter().chain(ones));
                break;
            }
            (Some("+"), Some(level)) | (Some(level), Some("+")) => both.push(level),
            (Some(left), Some(right)) if left == right => both.push(left),
            _ => return None,
        }
    }
    Some(both.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_filters_have_one_in_common_or_none() {
        for (one, other, both) in [
            ("a/b", "a/b", "a/b"),
            ("a/+", "+/b", "a/b"),
            ("#", "a/+", "a/+"),
            ("a/#", "a", "a"),
            ("a/#", "a/b/#", "a/b/#"),
            ("a/#", "+/+/c", "a/+/c"),
            ("#", "#", "#"),
            ("$SYS/#", "$SYS/a", "$SYS/a"),
            ("a", "b", "-"),
            ("a/b", "a", "-"),
            ("a/+", "a", "-"),
            ("#", "$SYS/a", "-"),
            ("+/a", "$SYS/a", "-"),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                assert_eq!(intersection(one, other).unwrap_or("-".into()), both, "{one} {other}");
            }
        }
    }
}
