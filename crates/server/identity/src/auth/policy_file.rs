//! The policy file: groups of clients, sets of topics, and which group may do what with which set.
//!
//! ```toml
//! [[groups]]
//! name = "low-sensors"
//! query = 'attributes.type in ["sensor"] and attributes.floor <= 5'
//!
//! [[spaces]]
//! name = "telemetry"
//! templates = ["buildings/${client.attributes.site}/${client.id}/#"]
//!
//! [[bindings]]
//! group = "low-sensors"
//! space = "telemetry"
//! permission = "publish"
//! ```
//!
//! The model is Event Grid's, and its names are understood. A query is a [`Query`]. The group
//! `$all` is always there and holds every client. Each binding grants; what no binding (and no rule
//! of the access file) grants is denied. What templates become are rules of the access file for the
//! clients of a group: see [`policy`]. Rules in order are read by `ordered.rs`.

mod ordered;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use policy::query::Query;
use policy::{Access, OrderedRule, Origin, Permission, Rule, RuleError, Source, Who};
use serde::Deserialize;
use toml::Spanned;

use config::source::nearest;

/// Holds every client. Cannot be defined.
pub const ALL: &str = "$all";

/// So many groups, spaces, and templates of a space, at most: each client's rules are made of them
/// when it connects.
pub const GROUPS_MAX: usize = 1_000;
pub const SPACES_MAX: usize = 1_000;
pub const TEMPLATES_MAX: usize = 100;

/// So many bindings at most.
pub const BINDINGS_MAX: usize = 10_000;

/// A policy that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    #[error("cannot read policy file {path}: {cause}")]
    Read { path: String, cause: std::io::Error },
    #[error("{path}:{line}: {detail}")]
    Line { path: String, line: usize, detail: String },
}

/// A line of the file, from 1, and what is wrong there.
type Mistake = (usize, String);

#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub groups: Vec<Group>,
    pub spaces: Vec<Space>,
    pub bindings: Vec<Binding>,
    /// Rules in order, before what bindings grant.
    pub ordered: Vec<OrderedRule>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    pub query: Arc<Query>,
    /// Of the file.
    pub line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    pub name: String,
    pub templates: Vec<Template>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// As the file has it.
    pub text: String,
    /// As rules have it.
    pub filter: String,
    pub line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Its place among the groups; None: [`ALL`].
    pub group: Option<usize>,
    /// Its place among the spaces.
    pub space: usize,
    pub permission: Permission,
}

impl Binding {
    /// What it grants with a template, whoever is in its group.
    pub fn rule(&self, template: &Template) -> Rule {
        let (permission, filter) = (self.permission, template.filter.clone());
        Rule { who: Who::Everyone, permission, filter }
    }

    /// What its group may do.
    pub fn verb(&self) -> &'static str {
        match self.permission {
            Permission::Write => "publish to",
            Permission::Read => "subscribe to",
            Permission::ReadWrite | Permission::Deny => "publish and subscribe to",
        }
    }
}

impl Template {
    /// The names of the attributes that it asks for.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        let parts = self.filter.split("%{attributes.").skip(1);
        parts.filter_map(|part| part.split_once('}')).map(|(name, _)| name)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    #[serde(default)]
    groups: Vec<RawGroup>,
    #[serde(default)]
    spaces: Vec<RawSpace>,
    #[serde(default)]
    bindings: Vec<RawBinding>,
    #[serde(default)]
    rules: Vec<ordered::RawRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    name: Spanned<String>,
    query: Spanned<String>,
    #[serde(default, rename = "description")]
    _description: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpace {
    name: Spanned<String>,
    templates: Spanned<Vec<Spanned<String>>>,
    #[serde(default, rename = "description")]
    _description: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBinding {
    group: Spanned<String>,
    space: Spanned<String>,
    permission: Spanned<String>,
    #[serde(default, rename = "description")]
    _description: String,
}

/// Reads a file. `unproved` says why nobody can prove a user name, if so it is.
///
/// # Errors
///
/// When it cannot be read, or at the first thing in it that is not understood: half a policy would
/// let in or lock out the wrong ones. And at the first thing that goes by user names where they are
/// not proved.
pub fn load(path: &Path, unproved: Option<&str>) -> Result<Policy, PolicyFileError> {
    policy_of(path, &read(path)?, unproved)
}

/// The text of a file.
///
/// # Errors
///
/// When it cannot be read.
pub fn read(path: &Path) -> Result<String, PolicyFileError> {
    let shown = || path.display().to_string();
    std::fs::read_to_string(path).map_err(|cause| PolicyFileError::Read { path: shown(), cause })
}

/// The same of a text that was read from there.
///
/// # Errors
///
/// As [`load`].
pub fn policy_of(
    path: &Path,
    text: &str,
    unproved: Option<&str>,
) -> Result<Policy, PolicyFileError> {
    let shown = || path.display().to_string();
    let policy = parse(text).and_then(|policy| match (unproved, policy.first_named()) {
        (Some(why), Some(line)) => {
            Err((line, format!("a rule for usernames needs verified ones: {why}")))
        }
        _ => Ok(policy),
    });
    policy.map_err(|(line, detail)| PolicyFileError::Line { path: shown(), line, detail })
}

/// Parses the text of a file.
///
/// # Errors
///
/// The first thing that is not understood: the line, and what is wrong there.
pub fn parse(text: &str) -> Result<Policy, Mistake> {
    let raw: RawPolicy = toml::from_str(text).map_err(|error| {
        (line_of(text, &error.span().unwrap_or_default()), error.message().into())
    })?;
    let reading = Reading { text };
    let groups = reading.groups(raw.groups)?;
    let spaces = reading.spaces(raw.spaces)?;
    let bindings = reading.bindings(raw.bindings, &groups, &spaces)?;
    let ordered = reading.ordered(raw.rules, &groups)?;
    let policy = Policy { groups, spaces, bindings, ordered };
    // Of spaces that no binding names as well: what stands in the file is right, or it is refused.
    for template in policy.spaces.iter().flat_map(|space| &space.templates) {
        let (who, permission) = (Who::Everyone, Permission::ReadWrite);
        Access::compile(&[Rule { who, permission, filter: template.filter.clone() }])
            .map_err(|error| (template.line, format!("'{}': {}", template.text, error.detail)))?;
    }
    let rules: Vec<(Origin, Rule)> = policy.rules().collect();
    Access::compile_from(&rules).map_err(|error| {
        let line = rules.get(error.index).map_or(0, |(origin, _)| origin.line as usize);
        (line, format!("'{}': {}", error.filter, error.detail))
    })?;
    Access::open().in_order(&policy.ordered).map_err(|error| {
        let line = policy.ordered.get(error.index).map_or(0, |rule| rule.line);
        (line, format!("'{}': {}", error.filter, error.detail))
    })?;
    Ok(policy)
}

impl Policy {
    /// What the broker makes of it where there is no access file.
    ///
    /// # Errors
    ///
    /// None in a policy that was parsed.
    pub fn access(&self) -> Result<Access, RuleError> {
        let rules: Vec<(Origin, Rule)> = self.rules().collect();
        Access::compile_from(&rules)?.in_order(&self.ordered)
    }

    /// What it grants, each rule with its binding and the line of its template. Those of a group
    /// are together, so that it is asked once for a client.
    pub fn rules(&self) -> impl Iterator<Item = (Origin, Rule)> {
        let mut bindings: Vec<&Binding> = self.bindings.iter().collect();
        bindings.sort_by_key(|binding| binding.group);
        bindings.into_iter().flat_map(|binding| {
            let who = binding
                .group
                .map_or(Who::Everyone, |group| Who::Matching(self.groups[group].query.clone()));
            let space = &self.spaces[binding.space];
            let (group, verb) = (self.name_of(binding.group), binding.verb());
            let name: Arc<str> = format!("{group} may {verb} {}", space.name).into();
            space.templates.iter().map(move |template| {
                let (line, name) = (template.line as u32, Some(name.clone()));
                let rule = Rule { who: who.clone(), ..binding.rule(template) };
                (Origin { source: Source::PolicyFile, line, name }, rule)
            })
        })
    }

    /// Of a group, by its place.
    pub fn name_of(&self, group: Option<usize>) -> &str {
        group.map_or(ALL, |group| &self.groups[group].name)
    }

    /// The line of the first thing that goes by the user name.
    pub fn first_named(&self) -> Option<usize> {
        let is_bound = |at| self.bindings.iter().any(|binding| binding.group == Some(at));
        let groups = self.groups.iter().enumerate();
        let named_groups =
            groups.filter(|(at, group)| group.query.asks_for_user() && is_bound(*at));
        let templates = self.rules().filter(|(_, rule)| rule.filter.contains("%u"));
        let named_templates = templates.map(|(origin, _)| origin.line as usize);
        let named_rules = self.ordered.iter().filter(|rule| {
            rule.query.as_ref().is_some_and(|query| query.asks_for_user())
                || rule.filters.iter().any(|filter| filter.contains("%u"))
        });
        let named_rules = named_rules.map(|rule| rule.line);
        let named_groups = named_groups.map(|(_, group)| group.line);
        named_groups.chain(named_templates).chain(named_rules).min()
    }
}

/// Turns what the file has into what it means.
struct Reading<'a> {
    text: &'a str,
}

impl Reading<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        line_of(self.text, span)
    }

    /// The name of a group or space, which no other of its kind has.
    fn name<'a>(
        &self,
        name: Spanned<String>,
        mut others: impl Iterator<Item = &'a str>,
    ) -> Result<String, Mistake> {
        let line = self.line(&name.span());
        let name = name.into_inner();
        if name.is_empty() || name.starts_with('$') {
            return Err((line, "a name must not be empty or begin with '$'".into()));
        }
        if others.any(|other| other == name) {
            return Err((line, format!("'{name}' is defined twice")));
        }
        Ok(name)
    }

    fn limit(&self, what: &str, count: usize, max: usize) -> Result<(), Mistake> {
        if count > max { Err((1, format!("at most {max} {what}, got {count}"))) } else { Ok(()) }
    }

    fn groups(&self, raw: Vec<RawGroup>) -> Result<Vec<Group>, Mistake> {
        self.limit("groups", raw.len(), GROUPS_MAX)?;
        let mut groups: Vec<Group> = Vec::new();
        for group in raw {
            let name = self.name(group.name, groups.iter().map(|group| group.name.as_str()))?;
            let line = self.line(&group.query.span());
            let query = Query::parse(group.query.get_ref())
                .map_err(|error| (line, format!("the query of '{name}', {error}")))?;
            groups.push(Group { name, query: Arc::new(query), line });
        }
        Ok(groups)
    }

    fn spaces(&self, raw: Vec<RawSpace>) -> Result<Vec<Space>, Mistake> {
        self.limit("spaces", raw.len(), SPACES_MAX)?;
        let mut spaces: Vec<Space> = Vec::new();
        for space in raw {
            let name = self.name(space.name, spaces.iter().map(|space| space.name.as_str()))?;
            let line = self.line(&space.templates.span());
            let count = space.templates.get_ref().len();
            if count == 0 || count > TEMPLATES_MAX {
                let detail = format!(
                    "'{name}' must have between 1 and {TEMPLATES_MAX} \
                templates, got {count}"
                );
                return Err((line, detail));
            }
            let mut templates = Vec::new();
            for template in space.templates.into_inner() {
                let line = self.line(&template.span());
                let text = template.into_inner();
                let filter =
                    filter_of(&text).map_err(|error| (line, format!("'{text}': {error}")))?;
                templates.push(Template { text, filter, line });
            }
            spaces.push(Space { name, templates });
        }
        Ok(spaces)
    }

    fn bindings(
        &self,
        raw: Vec<RawBinding>,
        groups: &[Group],
        spaces: &[Space],
    ) -> Result<Vec<Binding>, Mistake> {
        self.limit("bindings", raw.len(), BINDINGS_MAX)?;
        let group_names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        let space_names: Vec<&str> = spaces.iter().map(|space| space.name.as_str()).collect();
        let bind = |raw: RawBinding| {
            let group = match raw.group.get_ref().as_str() {
                ALL => None,
                _ => Some(self.find("group", &raw.group, &group_names)?),
            };
            let space = self.find("space", &raw.space, &space_names)?;
            let permission = match raw.permission.get_ref().to_ascii_lowercase().as_str() {
                "publish" | "publisher" => Permission::Write,
                "subscribe" | "subscriber" => Permission::Read,
                "both" => Permission::ReadWrite,
                other => {
                    let known = "publish, subscribe, both";
                    let detail = format!("a permission must be one of {known}, got '{other}'");
                    return Err((self.line(&raw.permission.span()), detail));
                }
            };
            Ok(Binding { group, space, permission })
        };
        raw.into_iter().map(bind).collect()
    }

    fn find(&self, kind: &str, name: &Spanned<String>, known: &[&str]) -> Result<usize, Mistake> {
        let wanted = name.get_ref();
        known.iter().position(|own| own == wanted).ok_or_else(|| {
            let near = nearest(wanted, known.iter().copied());
            let meant = near.map_or(String::new(), |near| format!("; did you mean '{near}'?"));
            (self.line(&name.span()), format!("unknown {kind} '{wanted}'{meant}"))
        })
    }
}

/// A template as rules have it: `%c`, `%u` and `%{attributes.NAME}` for its variables.
pub(super) fn filter_of(template: &str) -> Result<String, String> {
    let mut filter = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once("${") {
        push_plain(&mut filter, before)?;
        let Some((variable, behind)) = behind.split_once('}') else {
            return Err("a '${' has no closing '}'".into());
        };
        // As Event Grid writes what follows a value within its level.
        let (name, suffix) = variable.split_once('|').unwrap_or((variable, ""));
        match name {
            "client.id" | "clientid" => filter.push_str("%c"),
            "user" | "username" | "client.authenticationName" | "principal.name" => {
                filter.push_str("%u");
            }
            _ => match attribute_of(name) {
                Some(attribute) => filter.push_str(&format!("%{{attributes.{attribute}}}")),
                None => {
                    let known = "client.id, user, client.attributes.NAME";
                    return Err(format!("unknown variable '{name}'; valid: {known}"));
                }
            },
        }
        push_plain(&mut filter, suffix)?;
        rest = behind;
    }
    push_plain(&mut filter, rest)?;
    Ok(filter)
}

fn attribute_of(variable: &str) -> Option<&str> {
    let prefixes = ["client.attributes.", "principal.attributes.", "attributes.", "client_attrs."];
    let name = prefixes.iter().find_map(|prefix| variable.strip_prefix(prefix))?;
    (!name.is_empty() && !name.contains(['/', '+', '#', '%', '{'])).then_some(name)
}

/// What would be a variable in an access file is none here, and may be meant as one.
fn push_plain(filter: &mut String, text: &str) -> Result<(), String> {
    for (sign, variable) in [("%c", "client.id"), ("%u", "user"), ("%{", "client.attributes.NAME")]
    {
        if text.contains(sign) {
            return Err(format!("write ${{{variable}}} instead of {sign}"));
        }
    }
    filter.push_str(text);
    Ok(())
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    let before = text.get(..span.start).unwrap_or(text);
    before.bytes().filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: &str = r#"
[[groups]]
name = "low-sensors"
description = "What is near the ground."
query = 'attributes.type in ["sensor"] and attributes.floor <= 5'

[[spaces]]
name = "telemetry"
templates = [
  "b/${client.attributes.site}/${client.id}/#",
  "plain/+",
]

[[spaces]]
name = "own"
templates = ["${client.authenticationName|.factory1}/in"]

[[bindings]]
group = "low-sensors"
space = "telemetry"
permission = "publish"

[[bindings]]
group = "$all"
space = "own"
permission = "Subscriber"
"#;

    #[test]
    fn a_policy_becomes_rules() {
        let policy = parse(POLICY).unwrap();
        let rules: Vec<_> = policy.rules().collect();
        let matching: Vec<_> = rules
            .iter()
            .map(|(origin, rule)| {
                (
                    origin.line,
                    matches!(rule.who, Who::Everyone),
                    rule.permission,
                    rule.filter.as_str(),
                )
            })
            .collect();
        assert_eq!(
            matching,
            [
                (16, true, Permission::Read, "%u.factory1/in"),
                (10, false, Permission::Write, "b/%{attributes.site}/%c/#"),
                (11, false, Permission::Write, "plain/+"),
            ]
        );
        assert_eq!(policy.first_named(), Some(16));
        let names: Vec<_> = policy.spaces[0].templates[0].attributes().collect();
        assert_eq!(names, ["site"]);
    }

    #[test]
    fn a_query_by_user_counts_as_named_once_it_is_bound() {
        let group = "[[groups]]\nname = 'a'\nquery = \"user = 'anna'\"\n";
        assert_eq!(parse(group).unwrap().first_named(), None);
        let bound = format!(
            "{group}[[spaces]]\nname = 's'\ntemplates = ['t']\n[[bindings]]\ngroup = 'a'\nspace = \
             's'\npermission = 'both'\n"
        );
        assert_eq!(parse(&bound).unwrap().first_named(), Some(3));
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_line() {
        let changed = |from: &str, to: &str| {
            assert!(POLICY.contains(from), "{from}");
            parse(&POLICY.replacen(from, to, 1)).expect_err(to)
        };
        for (from, to, line, matching) in [
            ("floor <= 5", "floor <= five", 5, "a number"),
            ("group = \"low-sensors\"", "group = \"low-sensor\"", 19, "did you mean 'low-sensors'"),
            ("space = \"own\"", "space = \"owner\"", 25, "unknown space 'owner'"),
            ("\"publish\"", "\"write\"", 21, "got 'write'"),
            ("name = \"own\"", "name = \"telemetry\"", 15, "twice"),
            ("name = \"low-sensors\"", "name = \"$all\"", 3, "'$'"),
            ("${client.id}", "${client.ip}", 10, "unknown variable 'client.ip'"),
            ("${client.id}", "${client.id", 10, "no closing '}'"),
            ("${client.id}", "%c", 10, "write ${client.id}"),
            ("plain/+", "plain/${", 11, "no closing '}'"),
            ("permission = \"publish\"", "permision = \"publish\"", 21, "permision"),
            ("[[spaces]]", "[[space]]", 7, "space"),
            ("templates = [\"$", "templates = []\n#", 16, "0 templates"),
        ] {
            let (at, detail) = changed(from, to);
            assert!(detail.contains(matching), "{to}: {detail}");
            assert_eq!(at, line, "{to}: {detail}");
        }
        let many = "[[groups]]\nname = 'g'\nquery = \"user = 'a'\"\n".repeat(GROUPS_MAX + 1);
        assert!(parse(&many).unwrap_err().1.contains("at most"));
    }

    #[test]
    fn an_empty_policy_grants_nothing() {
        assert_eq!(parse("").unwrap().rules().count(), 0);
    }

    proptest! {
        #[test]
        fn no_template_makes_it_panic(text in "(\\$\\{|\\}|%|client|\\.id|attributes|/|\\PC){0,12}") {
            let _ = filter_of(&text);
        }
    }
}
