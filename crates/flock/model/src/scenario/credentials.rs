//! Names and passwords of clients from a file, a line for each.

use crate::model::Pattern;

/// Names and passwords as patterns: client `i` takes line `i`, and the lines begin again after the
/// last one.
///
/// A line is `name,password` or `name:password`, divided where the first of the two stands. Empty
/// lines and those that begin with `#` say nothing.
pub fn credentials(text: &str) -> Result<(Pattern, Pattern), String> {
    let (mut names, mut passwords) = (Vec::new(), Vec::new());
    for (n, line) in text.lines().enumerate() {
        let line = line.trim_end_matches('\r');
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, password)) = line.split_once([',', ':']) else {
            return Err(format!("line {}: must be name,password or name:password", n + 1));
        };
        names.push(name.to_owned());
        passwords.push(password.to_owned());
        if names.len() > LINES_MAX {
            return Err(format!("more than {LINES_MAX} lines: use several files"));
        }
    }
    if names.is_empty() {
        return Err("the file is empty: it needs lines name,password".to_owned());
    }
    Ok((Pattern::list(names), Pattern::list(passwords)))
}

/// They travel to every agent with the scenario.
const LINES_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_the_lines_in_turn() {
        let text = "# users\nann,a:b\r\nbob:(x|y),\n\ncy,\n";
        let (names, passwords) = credentials(text).unwrap();
        let client = |i| (names.name(i), passwords.name(i));
        assert_eq!(client(0), ("ann".into(), "a:b".into()));
        assert_eq!(client(1), ("bob".into(), "(x|y),".into()));
        assert_eq!(client(2), ("cy".into(), String::new()));
        assert_eq!(client(3).0, "ann", "they begin again");
        // As an agent gets it.
        let again = Pattern::parse(passwords.source()).unwrap();
        assert_eq!((0..3).map(|i| again.name(i)).collect::<Vec<_>>(), ["a:b", "(x|y),", ""]);
    }

    #[test]
    fn bad_files_say_where() {
        assert!(credentials("a,b\nc").unwrap_err().contains("line 2"));
        assert!(credentials("# nobody\n").unwrap_err().contains("empty"));
    }
}
