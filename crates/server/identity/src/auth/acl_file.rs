//! The access file, in the format of mosquitto's ACL file.
//!
//! ```text
//! # Rules before any `user` line are for anonymous clients.
//! topic read public/#
//!
//! user anna
//! topic readwrite home/anna/#
//! topic deny home/anna/secret
//!
//! # For everybody; %c is the client id, %u the user name. In `topic` lines they are text.
//! pattern write devices/%c/up
//! ```
//!
//! What the rules mean is said in [`policy`]. As in mosquitto, a permission word may be
//! left out before a filter without spaces only: of two words the first is the permission, so that
//! `topic Deny home/x` is a mistake to be reported, and not a grant of the topic "Deny home/x".

use std::path::Path;

use policy::{Access, Origin, Permission, Rule, Source, Who};

use config::source::nearest;

/// An access file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AclFileError {
    #[error("cannot read access file {path}: {cause}")]
    Read { path: String, cause: std::io::Error },
    #[error("{path}:{line}: {detail}")]
    Line { path: String, line: usize, detail: String },
}

/// A rule with where it stands.
pub type Located = (Origin, Rule);

/// Reads the rules of a file, each with its line. `unproved` says why nobody can prove a user name,
/// if so it is.
///
/// # Errors
///
/// When it cannot be read, or at the first line that is not understood: half a rule set would let
/// in or lock out the wrong ones. And at the first rule for user names where they are not proved.
pub fn load(path: &Path, unproved: Option<&str>) -> Result<Vec<Located>, AclFileError> {
    rules_of(path, &read(path)?, unproved)
}

/// The text of a file.
///
/// # Errors
///
/// When it cannot be read.
pub fn read(path: &Path) -> Result<String, AclFileError> {
    let shown = || path.display().to_string();
    std::fs::read_to_string(path).map_err(|cause| AclFileError::Read { path: shown(), cause })
}

/// The same of a text that was read from there.
///
/// # Errors
///
/// As [`load`].
pub fn rules_of(
    path: &Path,
    text: &str,
    unproved: Option<&str>,
) -> Result<Vec<Located>, AclFileError> {
    let shown = || path.display().to_string();
    let rules = compile(text).and_then(|_| match (unproved, first_named(text)?) {
        (Some(why), Some(line)) => {
            Err((line, format!("a rule for usernames needs verified ones: {why}")))
        }
        _ => Ok(parse(text)?.into_iter().map(|(line, rule)| (origin(line), rule)).collect()),
    });
    rules.map_err(|(line, detail)| AclFileError::Line { path: shown(), line, detail })
}

const fn origin(line: usize) -> Origin {
    Origin { source: Source::AccessFile, line: line as u32, name: None }
}

/// The line of the first rule that goes by the user name.
fn first_named(text: &str) -> Result<Option<usize>, (usize, String)> {
    let is_named = |rule: &Rule| match rule.who {
        Who::User(_) => true,
        Who::Everyone => rule.filter.contains("%u"),
        Who::Anonymous | Who::Matching(_) => false,
    };
    Ok(parse(text)?.into_iter().find(|(_, rule)| is_named(rule)).map(|(line, _)| line))
}

/// Compiles the text of a file. The error is a line number, from 1, and what is wrong there.
///
/// # Errors
///
/// The first line that is not understood.
pub fn compile(text: &str) -> Result<Access, (usize, String)> {
    let (lines, rules): (Vec<usize>, Vec<Rule>) = parse(text)?.into_iter().unzip();
    Access::compile(&rules).map_err(|error| {
        let line = lines.get(error.index).copied().unwrap_or(0);
        (line, format!("'{}': {}", error.filter, error.detail))
    })
}

/// Parses the text of a file into rules with their line numbers.
///
/// # Errors
///
/// The first line that is not understood.
pub fn parse(text: &str) -> Result<Vec<(usize, Rule)>, (usize, String)> {
    let mut rules = Vec::new();
    let mut who = Who::Anonymous;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fail = |detail: String| (index + 1, detail);
        let (keyword, rest) = first_word(line);
        let about = match keyword {
            "user" if rest.is_empty() => return Err(fail("a user line needs a name".into())),
            "user" => {
                who = Who::User(rest.into());
                continue;
            }
            "topic" => who.clone(),
            "pattern" => Who::Everyone,
            _ => {
                let meant = meant(keyword, KEYWORDS.into_iter());
                let known = "`user`, `topic`, `pattern`";
                return Err(fail(format!("must be one of {known}, got '{keyword}'{meant}")));
            }
        };
        let (permission, filter) = permission_and_filter(keyword, rest).map_err(fail)?;
        rules.push((index + 1, Rule { who: about, permission, filter: filter.into() }));
    }
    Ok(rules)
}

const KEYWORDS: [&str; 3] = ["user", "topic", "pattern"];

const PERMISSIONS: [(&str, Permission); 4] = [
    ("read", Permission::Read),
    ("write", Permission::Write),
    ("readwrite", Permission::ReadWrite),
    ("deny", Permission::Deny),
];

/// One word alone is a filter that may be read and written.
fn permission_and_filter<'a>(
    keyword: &str,
    text: &'a str,
) -> Result<(Permission, &'a str), String> {
    let (word, rest) = first_word(text);
    let known = PERMISSIONS.into_iter().find(|(name, _)| *name == word);
    match known {
        Some((_, permission)) if !rest.is_empty() => Ok((permission, rest)),
        None if rest.is_empty() && !word.is_empty() => Ok((Permission::ReadWrite, word)),
        None if !rest.is_empty() => {
            let meant = meant(word, PERMISSIONS.into_iter().map(|(name, _)| name));
            Err(format!(
                "must be `read`, `write`, `readwrite` or `deny`, got '{word}'{meant} (a topic \
                with a space needs one of them before it: `{keyword} readwrite {text}`)"
            ))
        }
        _ => Err(format!("a {keyword} line needs a topic filter")),
    }
}

/// What to add about a word that is not known: the one it is nearest to, or begins with.
fn meant(word: &str, known: impl Iterator<Item = &'static str> + Clone) -> String {
    let word = word.to_lowercase();
    let longest_start = known.clone().filter(|name| word.starts_with(name)).max_by_key(|n| n.len());
    let meant = nearest(&word, known).or(longest_start);
    meant.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

fn first_word(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}

#[cfg(test)]
mod tests {
    use policy::{Action, Identity};

    use super::*;

    const FILE: &str = "# all\ntopic read public/#\n\n  user anna maria\r\ntopic readwrite \
                        home/a b/#\n\
                        topic deny home/a b/x\ntopic\twrite\tout\nuser bob\ntopic readwrite b\n\
                        pattern write devices/%c/up\npattern %u/#\n";

    #[test]
    fn the_format_of_mosquitto_is_understood() {
        let rule = |who: &Who, permission, filter: &str| Rule {
            who: who.clone(),
            permission,
            filter: filter.into(),
        };
        let anna = Who::User("anna maria".into());
        let expected = vec![
            (2, rule(&Who::Anonymous, Permission::Read, "public/#")),
            (5, rule(&anna, Permission::ReadWrite, "home/a b/#")),
            (6, rule(&anna, Permission::Deny, "home/a b/x")),
            (7, rule(&anna, Permission::Write, "out")),
            (9, rule(&Who::User("bob".into()), Permission::ReadWrite, "b")),
            (10, rule(&Who::Everyone, Permission::Write, "devices/%c/up")),
            (11, rule(&Who::Everyone, Permission::ReadWrite, "%u/#")),
        ];
        assert_eq!(parse(FILE), Ok(expected));
        let access = compile(FILE).unwrap();
        let anna = Identity::new("c", Some("anna maria"));
        assert!(access.allows(anna, Action::Receive, "home/a b/y"));
        assert!(!access.allows(anna, Action::Receive, "home/a b/x"));
        assert!(access.allows(anna, Action::Publish, "devices/c/up"));
    }

    #[test]
    fn in_a_topic_line_a_placeholder_is_text_as_in_mosquitto() {
        let access = compile("user anna\ntopic a/%u\ntopic x%c/#\n").unwrap();
        let anna = Identity::new("c", Some("anna"));
        assert!(access.allows(anna, Action::Publish, "a/%u"));
        assert!(access.allows(anna, Action::Receive, "x%c/y"));
        assert!(!access.allows(anna, Action::Publish, "a/anna"));
        assert!(!access.allows(anna, Action::Publish, "xc/y"));
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        for (text, line, what) in [
            ("topic read a\ntopics read b", 2, "'topics'"),
            ("user", 1, "name"),
            ("\ntopic", 2, "needs a topic filter"),
            ("topic read", 1, "needs a topic filter"),
            ("topic read a/#/b", 1, "`#` must be the last level"),
            ("topic read a/%{attributes.site}", 1, "pattern"),
            ("Topic read a", 1, "did you mean `topic`?"),
            ("users anna", 1, "did you mean `user`?"),
        ] {
            let (at, detail) = compile(text).unwrap_err();
            assert!(at == line && detail.contains(what), "{text}: {at} {detail}");
        }
    }

    #[test]
    fn a_misspelt_permission_is_refused_and_never_part_of_a_topic() {
        for (text, meant) in [
            ("topic Deny tele/secret", "did you mean `deny`?"),
            ("topic readonly tele/#", "did you mean `read`?"),
            ("pattern raedwrite tele/%c", "did you mean `readwrite`?"),
            ("topic DENY\ttele/a b", "did you mean `deny`?"),
            ("topic subscribe tele/#", "`topic readwrite subscribe tele/#`"),
        ] {
            let (at, detail) = compile(&format!("user anna\n{text}\n")).unwrap_err();
            assert!(at == 2 && detail.contains(meant), "{text}: {at} {detail}");
        }
    }

    #[test]
    fn an_empty_file_grants_nothing() {
        let nobody = Identity::new("c", None);
        assert!(!compile("# nothing\n").unwrap().allows(nobody, Action::Publish, "a"));
    }
}
