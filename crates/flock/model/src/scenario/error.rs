//! Errors in a scenario text: where, what, and how to fix it.

use std::fmt;

/// Something is wrong with a scenario. Displays as `file:line:col: message`, the line itself, and a
/// hint if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    pub file: String,
    /// 1-based line and column, the text of the line, and how many characters are meant.
    pub location: Option<Location>,
    pub message: String,
    pub hint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub line: usize,
    pub column: usize,
    pub text: String,
    pub width: usize,
}

impl Location {
    /// The location of a byte range in a text.
    pub fn of(text: &str, range: std::ops::Range<usize>) -> Self {
        let start = floor_boundary(text, range.start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let end = floor_boundary(text, range.end.clamp(start, line_end));
        Self {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            text: text[line_start..line_end].trim_end().to_owned(),
            width: text[start..end].chars().count().max(1),
        }
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl ScenarioError {
    pub fn new(file: &str, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), location: None, message: message.into(), hint: None }
    }

    #[must_use]
    pub fn at(mut self, text: &str, range: std::ops::Range<usize>) -> Self {
        self.location = Some(Location::of(text, range));
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            None => write!(f, "{}: {}", self.file, self.message)?,
            Some(location) => {
                let Location { line, column, text, width } = location;
                writeln!(f, "{}:{line}:{column}: {}", self.file, self.message)?;
                let number = line.to_string();
                writeln!(f, " {number} | {text}")?;
                write!(f, " {:1$} | ", "", number.len())?;
                write!(f, "{:1$}{2}", "", column - 1, "^".repeat(*width))?;
            }
        }
        match &self.hint {
            Some(hint) => write!(f, "\n hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ScenarioError {}

/// `did you mean ...` for the known name that is nearest to `wrong`, if one is near.
pub fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let (distance, name) =
        known.into_iter().map(|name| (edit_distance(wrong, name), name)).min_by_key(|(d, _)| *d)?;
    let near = distance <= wrong.chars().count().max(name.chars().count()).div_ceil(3);
    near.then(|| format!("did you mean `{name}`?"))
}

/// Levenshtein's, with swapped neighbours counted as one.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_shown_with_its_line() {
        let text = "a = 1\ncout = 5\n";
        let error = ScenarioError::new("x.toml", "unknown key `cout`")
            .at(text, 6..10)
            .hint(did_you_mean("cout", ["count", "id"]));
        let expected = "x.toml:2:1: unknown key `cout`\n 2 | cout = 5\n   | ^^^^\n hint: did you mean `count`?";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn far_names_are_not_suggested() {
        assert_eq!(did_you_mean("banana", ["count", "id"]), None);
        assert_eq!(did_you_mean("tpoics", ["topics"]).unwrap(), "did you mean `topics`?");
    }
}
