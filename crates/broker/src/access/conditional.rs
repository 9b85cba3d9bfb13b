//! Rules that depend on what a client is: for whom a query holds, or with attributes in the filter.

use std::sync::Arc;

use super::pattern::{Pattern, substitute};
use super::{Identity, Permission, Rule, RuleSet, Who};
use crate::Attributes;
use crate::query::Query;

/// A rule that depends on what a client is.
#[derive(Clone, Debug)]
pub(super) struct Conditional {
    /// None: it is for everyone.
    pub(super) query: Option<Arc<Query>>,
    pub(super) then: Then,
}

/// What it is for whom it is.
#[derive(Clone, Debug)]
pub(super) enum Then {
    /// The same for all. Cheap to clone.
    Pattern(Permission, Pattern),
    Template(Template),
}

/// The query that a client was last asked for: rules of one group follow each other.
#[derive(Default)]
pub(super) struct Asked<'a> {
    latest: Option<(&'a Arc<Query>, bool)>,
}

impl<'a> Asked<'a> {
    /// No query is for everyone.
    pub(super) fn holds(
        &mut self,
        query: Option<&'a Arc<Query>>,
        identity: Identity<'_>,
        attributes: &Attributes,
    ) -> bool {
        match (query, self.latest) {
            (None, _) => true,
            (Some(query), Some((same, held))) if Arc::ptr_eq(query, same) => held,
            (Some(query), _) => {
                let holds = query.holds(identity, attributes);
                self.latest = Some((query, holds));
                holds
            }
        }
    }
}

impl Conditional {
    pub(super) fn new(
        rule: &Rule,
        query: Option<&Arc<Query>>,
        template: Option<Template>,
    ) -> Result<Self, &'static str> {
        let pattern = || Pattern::compile(&rule.filter, true);
        let then = match template {
            Some(template) => Then::Template(template),
            None => Then::Pattern(rule.permission, pattern()?),
        };
        Ok(Self { query: query.cloned(), then })
    }

    /// Does it depend on what only a credential says?
    pub(super) fn asks_attributes(&self) -> bool {
        matches!(self.then, Then::Template(_))
            || self.query.as_ref().is_some_and(|query| query.asks_attributes())
    }
}

impl Then {
    /// For a client of which nobody knows whether the rule is for it: what it may deny is denied.
    pub(super) fn add_denied(&self, rules: &mut RuleSet) {
        match self {
            Self::Pattern(Permission::Deny, pattern) => {
                rules.add(Permission::Deny, pattern.clone());
            }
            Self::Template(template) if template.permission == Permission::Deny => {
                if let Some(pattern) = template.widest_pattern() {
                    rules.add(Permission::Deny, pattern);
                }
            }
            Self::Pattern(..) | Self::Template(_) => {}
        }
    }

    pub(super) fn add_to(&self, rules: &mut RuleSet, attributes: &Attributes) {
        match self {
            Self::Pattern(permission, pattern) => rules.add(*permission, pattern.clone()),
            Self::Template(template) => template.add_to(rules, attributes),
        }
    }
}

/// A rule with attributes in its filter.
#[derive(Clone, Debug)]
pub(super) struct Template {
    permission: Permission,
    /// The text before each attribute, and the name of the attribute.
    parts: Box<[(Box<str>, Box<str>)]>,
    end: Box<str>,
}

impl Template {
    /// None: there is no attribute in the filter.
    pub(super) fn compile(rule: &Rule) -> Result<Option<Self>, &'static str> {
        let template = Self::of(rule.permission, &rule.filter)?;
        if template.is_some() && !matches!(rule.who, Who::Everyone | Who::Matching(_)) {
            return Err("%{attributes.NAME} works in `pattern` rules only");
        }
        Ok(template)
    }

    /// The same of a filter that may have attributes in it.
    pub(super) fn of(permission: Permission, filter: &str) -> Result<Option<Self>, &'static str> {
        let mut parts = Vec::new();
        let mut rest = filter;
        while let Some((text, behind)) = rest.split_once(ATTRIBUTE) {
            let Some((name, behind)) = behind.split_once('}') else {
                return Err("`%{attributes.NAME}` lacks its `}`");
            };
            if name.is_empty() || name.contains('/') {
                return Err("`%{attributes.NAME}` needs the name of an attribute");
            }
            parts.push((text.into(), name.into()));
            rest = behind;
        }
        match parts.len() {
            0 => return Ok(None),
            1..=ATTRIBUTES_PER_RULE_MAX => {}
            _ => return Err("a rule can have two attributes at most"),
        }
        let template = Self { permission, parts: parts.into(), end: rest.into() };
        let example: Vec<String> = vec!["x".into(); template.parts.len()];
        Pattern::compile(&template.filled(&example), true)?;
        Ok(Some(template))
    }

    fn add_to(&self, rules: &mut RuleSet, attributes: &Attributes) {
        self.each_pattern(attributes, |pattern| rules.add(self.permission, pattern));
    }

    /// What the rule is for a client: nothing, if it lacks an attribute.
    pub(super) fn each_pattern(&self, attributes: &Attributes, mut take: impl FnMut(Pattern)) {
        let mut choices: Vec<Vec<String>> = vec![Vec::new()];
        for (_, name) in &self.parts {
            let texts = attributes.get(name).map(|value| value.texts()).unwrap_or_default();
            let usable: Vec<_> = texts.into_iter().filter(|text| fits_level(text)).collect();
            let longer = |choice: &Vec<String>| {
                let with = |text: &String| [choice.as_slice(), std::slice::from_ref(text)].concat();
                usable.iter().map(with).collect::<Vec<_>>()
            };
            choices = choices.iter().flat_map(longer).collect();
        }
        for choice in choices {
            let filter = self.filled(&choice);
            // A value that begins with `$` at the front would reach the broker's topics.
            let is_reaching = filter.starts_with('$') && self.begins_with_attribute();
            if let (false, Ok(pattern)) = (is_reaching, Pattern::compile(&filter, true)) {
                take(pattern);
            }
        }
    }

    /// What it is for any client together: an attribute may be any level, or in any.
    pub(super) fn widest_pattern(&self) -> Option<Pattern> {
        let marks: Vec<String> = vec![ANY.into(); self.parts.len()];
        let filter = self.filled(&marks);
        let level = |level: &str| if level.contains(ANY) { "+".into() } else { level.to_owned() };
        let filter = filter.split('/').map(level).collect::<Vec<_>>().join("/");
        // The example was compiled, so this can be.
        Pattern::compile(&filter, true).ok()
    }

    fn begins_with_attribute(&self) -> bool {
        self.parts.first().is_some_and(|(text, _)| text.is_empty())
    }

    fn filled(&self, values: &[String]) -> String {
        let parts = self.parts.iter().zip(values);
        let mut filter: String =
            parts.flat_map(|((text, _), value)| [&**text, value.as_str()]).collect();
        filter.push_str(&self.end);
        filter
    }
}

/// A per cent sign might make a placeholder of what is a value.
fn fits_level(text: &str) -> bool {
    substitute(text).is_some() && !text.contains('%')
}

/// No filter has it.
const ANY: &str = "\0";

const ATTRIBUTE: &str = "%{attributes.";

/// What a rule stands for grows with the product of its attributes' lists.
const ATTRIBUTES_PER_RULE_MAX: usize = 2;
