//! mosquitto's access file, as far as it takes to write its rules in another form.

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) line: usize,
    pub(crate) who: Who,
    pub(crate) permission: Permission,
    pub(crate) filter: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Anonymous,
    User(String),
    /// A `pattern` line.
    Everyone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Read,
    Write,
    ReadWrite,
    Deny,
}

impl Rule {
    pub(crate) fn is_deny(&self) -> bool {
        self.permission == Permission::Deny
    }

    /// Does it ask for the username?
    pub(crate) fn is_named(&self) -> bool {
        match self.who {
            Who::User(_) => true,
            Who::Everyone => self.filter.contains("%u"),
            Who::Anonymous => false,
        }
    }
}

/// The rules in their order; the error is a line and what is wrong there.
pub(crate) fn parse(text: &str) -> Result<Vec<Rule>, (usize, String)> {
    let mut rules = Vec::new();
    let mut user = Who::Anonymous;
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (keyword, rest) = word(line);
        let who = match keyword {
            "user" if !rest.is_empty() => {
                user = Who::User(rest.into());
                continue;
            }
            "topic" => user.clone(),
            "pattern" => Who::Everyone,
            _ => return Err((number, format!("unknown line '{keyword}'"))),
        };
        let (first, behind) = word(rest);
        let (permission, filter) = match (first, behind) {
            ("read", filter) => (Permission::Read, filter),
            ("write", filter) => (Permission::Write, filter),
            ("readwrite", filter) => (Permission::ReadWrite, filter),
            ("deny", filter) => (Permission::Deny, filter),
            (filter, "") => (Permission::ReadWrite, filter),
            (other, _) => return Err((number, format!("unknown permission '{other}'"))),
        };
        if filter.is_empty() {
            return Err((number, "a line needs a topic filter".into()));
        }
        rules.push(Rule { line: number, who, permission, filter: filter.into() });
        if rules.len() > RULES_MAX {
            return Err((number, format!("more than {RULES_MAX} rules cannot be imported")));
        }
    }
    Ok(rules)
}

fn word(text: &str) -> (&str, &str) {
    text.split_once(char::is_whitespace).map_or((text, ""), |(word, rest)| (word, rest.trim()))
}

/// More are no file that somebody wrote.
const RULES_MAX: usize = 1_000_000;
