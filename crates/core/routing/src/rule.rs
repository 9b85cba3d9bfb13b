//! Rules: filter, conditions, enrichments, form and target.

use thiserror::Error;
use topic::TopicLimits;

use crate::condition::{CONDITIONS_MAX, Condition, Context, VALUES_MAX};
use crate::enrich::{Enrichments, Template};
use crate::event::{Event, PayloadReading};
use crate::form::{self, Binding, Form, Output};
use crate::property::Property;
use crate::record::Record;

/// Characters of the name of a rule or a target.
pub const NAME_CHARS_MAX: usize = 64;
/// Bytes of the URL of a target.
pub const URL_BYTES_MAX: usize = 2_048;
/// Characters of the topic of a target, as Kafka allows them.
pub const TARGET_TOPIC_CHARS_MAX: usize = 249;

/// The parts of a rule, not checked together yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    pub name: String,
    pub is_enabled: bool,
    pub filter: String,
    pub conditions: Vec<Condition>,
    pub enrichments: Enrichments,
    pub form: Form,
    pub payload: PayloadReading,
    /// Headers of what the target receives.
    pub properties: Vec<Property>,
    /// None: the rule is read from another system, and its target has no counterpart.
    pub target: Option<Target>,
}

/// A rule that can be evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule(Draft);

/// Where events go. It is data: this crate sends nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub name: String,
    pub destination: Destination,
}

/// The address of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Http { url: String },
    Kafka { topic: String, key: Template },
}

/// The answer of a rule for a record, whether the rule is enabled or not.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict<'r> {
    Matches,
    /// The filter does not match the topic.
    Filter,
    /// This condition is the first that does not hold.
    Condition(&'r Condition),
}

/// Why a rule is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {detail}")]
pub struct RuleError {
    /// The key of the rule that is wrong, such as `filter` or `target.url`.
    pub key: &'static str,
    pub detail: String,
}

impl Rule {
    /// Checks what concerns the rule as a whole. Conditions over attributes come before those that
    /// need the JSON of a payload.
    ///
    /// # Errors
    ///
    /// A part is not allowed, there are too many conditions or values, or parts exclude each other.
    pub fn new(mut draft: Draft) -> Result<Self, RuleError> {
        check_name("name", &draft.name)?;
        check_filter(&draft.filter)?;
        let count = draft.conditions.len();
        if count > CONDITIONS_MAX {
            let detail =
                format!("a rule must have at most {CONDITIONS_MAX} conditions, got {count}");
            return Err(RuleError { key: "conditions", detail });
        }
        let values: usize = draft.conditions.iter().map(Condition::values).sum();
        if values > VALUES_MAX {
            let detail = format!(
                "the conditions of a rule must have at most {VALUES_MAX} values together, got {values}"
            );
            return Err(RuleError { key: "conditions", detail });
        }
        if let Some(target) = &draft.target {
            check_name("target.name", &target.name)?;
            target.destination.check()?;
            if draft.form == Form::Batch && target.destination.binding() == Binding::Kafka {
                let detail = "must be raw, structured or binary: Kafka has no batches of events";
                return Err(RuleError { key: "form", detail: detail.into() });
            }
            if draft.form == Form::Batch && draft.properties.iter().any(Property::is_of_event) {
                let detail = format!(
                    "must be raw, structured or binary: target '{}' has headers with values of \
                     one event",
                    target.name
                );
                return Err(RuleError { key: "form", detail });
            }
        }
        draft.conditions.sort_by_key(Condition::asks_data);
        Ok(Self(draft))
    }

    /// With a condition on the type of the event, which does not count towards the limits.
    pub(crate) fn of_types(mut self, types: &[&str]) -> Self {
        if !types.is_empty() {
            self.0.conditions.insert(0, Condition::of_types(types));
        }
        self
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn is_enabled(&self) -> bool {
        self.0.is_enabled
    }

    pub fn filter(&self) -> &str {
        &self.0.filter
    }

    pub fn conditions(&self) -> &[Condition] {
        &self.0.conditions
    }

    pub fn enrichments(&self) -> &Enrichments {
        &self.0.enrichments
    }

    pub fn form(&self) -> Form {
        self.0.form
    }

    pub fn payload(&self) -> PayloadReading {
        self.0.payload
    }

    pub fn target(&self) -> Option<&Target> {
        self.0.target.as_ref()
    }

    /// Does it match, and if not, why?
    pub fn verdict(&self, event: &Event<'_>) -> Verdict<'_> {
        if !topic::matches(&self.0.filter, event.record().topic) {
            return Verdict::Filter;
        }
        let context = self.context(event);
        match self.0.conditions.iter().find(|condition| !condition.holds(context)) {
            Some(condition) => Verdict::Condition(condition),
            None => Verdict::Matches,
        }
    }

    /// All conditions that do not hold.
    pub fn failed(&self, event: &Event<'_>) -> Vec<&Condition> {
        let context = self.context(event);
        self.0.conditions.iter().filter(|condition| !condition.holds(context)).collect()
    }

    fn context<'c, 'a>(&'c self, event: &'c Event<'a>) -> Context<'c, 'a> {
        Context { event, enrichments: &self.0.enrichments, reading: self.0.payload }
    }

    /// What the target receives for a record that matches.
    pub fn output(&self, event: &Event<'_>) -> Output {
        self.render(event, self.0.form)
    }

    fn render(&self, event: &Event<'_>, form: Form) -> Output {
        let binding = self.target().map_or(Binding::Http, |target| target.destination.binding());
        let Draft { enrichments, payload, properties, .. } = &self.0;
        let mut output = form::render(event, enrichments, *payload, form, binding);
        let context = self.context(event);
        output.headers.extend(properties.iter().filter_map(|property| property.header(context)));
        output
    }

    /// The same as a part of what a target joins: an event of a batch without the brackets.
    pub fn part(&self, event: &Event<'_>) -> Output {
        let form = match self.0.form {
            Form::Batch => Form::Structured,
            form => form,
        };
        self.render(event, form)
    }

    /// What is allowed, and is hardly meant.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for condition in &self.0.conditions {
            if let Some(name) = condition.foreign_attribute() {
                notes.push(format!(
                    "condition `{condition}`: no enrichment is named '{name}', so only messages \
                     that are CloudEvents can have it"
                ));
            }
        }
        if self.0.form == Form::Raw && !self.0.enrichments.is_empty() {
            notes
                .push("form raw sends the payload alone: enrichments serve conditions only".into());
        }
        notes
    }
}

impl Destination {
    /// The word for its kind in rules.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::Kafka { .. } => "kafka",
        }
    }

    pub fn is_kafka(&self) -> bool {
        matches!(self, Self::Kafka { .. })
    }

    pub fn binding(&self) -> Binding {
        match self {
            Self::Http { .. } => Binding::Http,
            Self::Kafka { .. } => Binding::Kafka,
        }
    }

    /// The key of the Kafka record.
    pub fn key(&self, record: &Record<'_>) -> Option<String> {
        match self {
            Self::Http { .. } => None,
            Self::Kafka { key, .. } => Some(key.expand(record)),
        }
    }

    fn check(&self) -> Result<(), RuleError> {
        match self {
            Self::Http { url } => check_url(url),
            Self::Kafka { topic, .. } => check_target_topic(topic),
        }
    }
}

pub(crate) fn check_name(key: &'static str, name: &str) -> Result<(), RuleError> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_of_name) {
        true => Ok(()),
        false => Err(RuleError {
            key,
            detail: format!(
                "'{name}': must have 1 to {NAME_CHARS_MAX} letters, digits, '-', '_' and '.'"
            ),
        }),
    }
}

pub(crate) fn check_filter(filter: &str) -> Result<(), RuleError> {
    let refused = |detail: String| Err(RuleError { key: "filter", detail });
    if let Err(error) = topic::check_filter(filter, &TopicLimits::default()) {
        return refused(format!("'{filter}': {error}"));
    }
    match topic::reserved(filter) {
        Some(prefix) => refused(format!("'{filter}': must not begin with {prefix}")),
        None => Ok(()),
    }
}

pub(crate) fn check_url(url: &str) -> Result<(), RuleError> {
    let refused = |detail: String| Err(RuleError { key: "target.url", detail });
    if url.len() > URL_BYTES_MAX {
        return refused(format!("must have at most {URL_BYTES_MAX} bytes"));
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.contains("${") {
        return refused("must have printable ASCII characters only, and no variables".into());
    }
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    match authority {
        Some(authority) if authority.starts_with(':') => refused("must have a host".into()),
        None | Some("") => refused("must be a URL such as https://example.com/events".into()),
        Some(authority) if authority.contains('@') => {
            refused("must have no username and no password".into())
        }
        Some(_) => Ok(()),
    }
}

fn check_target_topic(topic: &str) -> Result<(), RuleError> {
    let is_of_topic = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_valid = (1..=TARGET_TOPIC_CHARS_MAX).contains(&topic.len())
        && topic.bytes().all(is_of_topic)
        && !matches!(topic, "." | "..");
    match is_valid {
        true => Ok(()),
        false => Err(RuleError {
            key: "target.topic",
            detail: format!(
                "'{topic}': must have 1 to {TARGET_TOPIC_CHARS_MAX} letters, digits, '-', '_' and '.'"
            ),
        }),
    }
}
