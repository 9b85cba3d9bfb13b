//! `quelea policy`: checks a policy file, and explains what it decides.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use policy::{Access, Action, ClientLocation, Grants, Identity, Manner};
use policy::{Attribute, Attributes, Number, Principal};

use identity::auth::policy_file::{self, Policy, PolicyFileError};

use base::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, complain, print};

/// The arguments of `quelea policy`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum PolicyCommand {
    /// Check a policy file, and print errors with their lines.
    ///
    /// Exit code: 0 valid, 2 invalid.
    Check {
        /// The policy file.
        file: PathBuf,
    },
    /// Check whether a client has a right, and print the group, binding and template that decide.
    ///
    /// Exit code: 0 allowed, 1 denied, 2 invalid file or arguments.
    Test(TestArgs),
}

#[derive(Clone, Debug, Args)]
struct TestArgs {
    /// The policy file.
    file: PathBuf,
    /// The action of the client.
    action: Wanted,
    /// The topic, or the topic filter for `subscribe`.
    topic: String,
    /// The client ID.
    #[arg(short = 'i', long = "id", default_value = "")]
    client_id: String,
    /// The username.
    #[arg(short, long)]
    username: Option<String>,
    /// An attribute of the client. Repeated, it is a list. Quote a number to make it a text.
    #[arg(short, long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, Attribute)>,
    /// The QoS of the publish or subscription.
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// The publish has the retain flag.
    #[arg(short, long)]
    retain: bool,
    /// The address of the client.
    #[arg(long)]
    address: Option<IpAddr>,
    /// The name of the listener.
    #[arg(long, default_value = "")]
    listener: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wanted {
    Publish,
    Subscribe,
    Receive,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &PolicyArgs) -> u8 {
    let decided = match &args.command {
        PolicyCommand::Check { file } => policy_file::load(file, None).map(|policy| {
            print(summary(&policy).as_bytes());
            EXIT_OK
        }),
        PolicyCommand::Test(test) => explain(test),
    };
    decided.unwrap_or_else(|error| {
        complain(&error);
        EXIT_USAGE
    })
}

fn summary(policy: &Policy) -> String {
    let Policy { groups, spaces, bindings, ordered } = policy;
    let templates: usize = spaces.iter().map(|space| space.templates.len()).sum();
    let (groups, spaces, bindings) = (groups.len(), spaces.len(), bindings.len());
    let rules = ordered.len();
    format!(
        "valid: groups {groups}, spaces {spaces} with {templates} templates, bindings {bindings}, \
         rules {rules}\n"
    )
}

fn explain(test: &TestArgs) -> Result<u8, PolicyFileError> {
    let policy = policy_file::load(&test.file, None)?;
    let client = Client::new(test);
    let mut text = client.groups(&policy);
    let is_allowed = client.may(&policy);
    text.push_str(if is_allowed { "allowed" } else { "denied" });
    match (is_allowed, client.in_order(&policy)) {
        (true, Some(line)) => text.push_str(&format!(":\n  the rule in line {line} allows it\n")),
        (true, None) => {
            let grants: String = client.granting(&policy).map(|it| format!("  {it}\n")).collect();
            text.push_str(&format!(":\n{grants}"));
        }
        (false, _) => text.push_str(&client.why_denied(&policy)),
    }
    print(text.as_bytes());
    Ok(if is_allowed { EXIT_OK } else { EXIT_FAILURE })
}

/// Who asks, and for what.
struct Client<'a> {
    test: &'a TestArgs,
    principal: Principal,
}

impl<'a> Client<'a> {
    fn new(test: &'a TestArgs) -> Self {
        let attributes = Attributes::new(lists_of(&test.attributes));
        Self { test, principal: Principal { attributes, ..Principal::default() } }
    }

    fn identity(&self) -> Identity<'_> {
        let principal = Some(&self.principal);
        let (client_id, username) = (&*self.test.client_id, self.test.username.as_deref());
        Identity { client_id, username, principal }
    }

    fn is_in(&self, policy: &Policy, group: Option<usize>) -> bool {
        group.is_none_or(|group| policy.groups[group].query.holds(self.identity()))
    }

    fn groups(&self, policy: &Policy) -> String {
        let mut text = format!("groups: {}", policy_file::ALL);
        for (place, group) in policy.groups.iter().enumerate() {
            if self.is_in(policy, Some(place)) {
                text.push_str(&format!(", {}", group.name));
            }
        }
        text.push('\n');
        let asked = policy.groups.iter().flat_map(|group| {
            group.query.attributes().into_iter().map(move |name| (group.name.as_str(), name))
        });
        for (group, name) in asked {
            if self.principal.attributes.get(name).is_none() {
                text.push_str(&format!(
                    "  group {group} needs the attribute '{name}', which the client lacks\n"
                ));
            }
        }
        text
    }

    /// What grants it, in words.
    fn granting(&self, policy: &Policy) -> impl Iterator<Item = String> {
        policy.bindings.iter().filter(|binding| self.is_in(policy, binding.group)).flat_map(
            move |binding| {
                let space = &policy.spaces[binding.space];
                let rules =
                    space.templates.iter().map(|template| (template, binding.rule(template)));
                let granting = rules.filter(|(_, rule)| self.is_granted(rule.clone()));
                granting.map(move |(template, _)| {
                    let (line, text) = (template.line, &template.text);
                    let group = policy.name_of(binding.group);
                    let what = binding.verb();
                    format!("{group} may {what} {}: '{text}' (line {line})", space.name)
                })
            },
        )
    }

    fn is_granted(&self, rule: policy::Rule) -> bool {
        let access = Access::compile(&[rule]).unwrap_or_default();
        self.grants_by(&access).allows(self.identity(), self.action(), &self.test.topic)
    }

    /// What the broker would do, asked of what the broker asks.
    fn may(&self, policy: &Policy) -> bool {
        let grants = self.grants_by(&policy.access().unwrap_or_default());
        grants.allows_as(self.identity(), self.action(), &self.test.topic, self.manner())
    }

    /// The line of the rule in order that decides it, unless something stronger does.
    fn in_order(&self, policy: &Policy) -> Option<usize> {
        let grants = self.grants_by(&policy.access().unwrap_or_default());
        let (identity, topic) = (self.identity(), &self.test.topic);
        grants.rule_in_order(identity, self.action(), topic, self.manner()).map(|it| it.0)
    }

    fn why_denied(&self, policy: &Policy) -> String {
        let grants = self.grants_by(&policy.access().unwrap_or_default());
        let (identity, topic) = (self.identity(), &self.test.topic);
        let decided = grants.rule_in_order(identity, self.action(), topic, self.manner());
        match decided {
            Some((line, false)) => format!(":\n  the rule in line {line} denies it\n"),
            None if self.granting(policy).next().is_none() => {
                let rules = match policy.ordered.is_empty() {
                    true => "",
                    false => "no rule applies, and ",
                };
                let missing = self.missing(policy).into_iter().map(|it| format!("  {it}\n"));
                let missing: String = missing.collect();
                format!(": {rules}no binding of its groups grants it\n{missing}")
            }
            _ => {
                let why = grants.why_denied(identity, self.action(), topic, self.manner());
                format!(": {why}\n")
            }
        }
    }

    const fn manner(&self) -> Manner {
        Manner { qos: self.test.qos, retain: self.test.retain }
    }

    fn grants_by(&self, access: &Access) -> Grants {
        let place = ClientLocation { address: self.test.address, listener: &self.test.listener };
        access.grants_of(self.identity(), place)
    }

    const fn action(&self) -> Action {
        match self.test.action {
            Wanted::Publish => Action::Publish,
            Wanted::Subscribe => Action::Subscribe,
            Wanted::Receive => Action::Receive,
        }
    }

    /// Templates that stand for nothing, as the client lacks what they ask for.
    fn missing(&self, policy: &Policy) -> Vec<String> {
        let mut missing = Vec::new();
        for binding in policy.bindings.iter().filter(|binding| self.is_in(policy, binding.group)) {
            for template in &policy.spaces[binding.space].templates {
                for name in template.attributes() {
                    if self.principal.attributes.get(name).is_none() {
                        let text = &template.text;
                        missing.push(format!(
                            "'{text}' needs the attribute '{name}', which the client lacks"
                        ));
                    }
                }
            }
        }
        missing.dedup();
        missing
    }
}

fn attribute(text: &str) -> Result<(String, Attribute), String> {
    let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err("an attribute must be NAME=VALUE".into());
    };
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let value = match (quoted, Number::parse(value)) {
        (Some(text), _) => Attribute::Text(text.into()),
        (None, Some(number)) => Attribute::Number(number),
        (None, None) if value.parse::<f64>().is_ok_and(f64::is_finite) => {
            let detail = "must be a number such as 7, -2.5 or 1e3; a text needs quotes";
            return Err(format!("'{value}' {detail}: '{name}=\"{value}\"'"));
        }
        (None, None) => Attribute::Text(value.into()),
    };
    Ok((name.into(), value))
}

/// What has a name twice becomes a list.
fn lists_of(attributes: &[(String, Attribute)]) -> Vec<(Box<str>, Attribute)> {
    let all_of = |name: &str| {
        let own = attributes.iter().filter(|(other, _)| other == name);
        own.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let value_of = |name: &str| {
        let mut values = all_of(name);
        if values.len() == 1 { values.remove(0) } else { Attribute::List(values.into()) }
    };
    attributes.iter().map(|(name, _)| (name.as_str().into(), value_of(name))).collect()
}

const EXAMPLES: &str = "\
Examples:
  quelea policy check policy.toml
  quelea policy test policy.toml publish vehicles/v7/telemetry/x -i car7 -a vin=v7
  quelea policy test policy.toml subscribe 'vehicles/#' -u anna -a role=fleet -a role=audit";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_does_not_open_the_topics_of_the_broker() {
        let text = "[[rules]]\neffect = \"allow\"\ntopics = [\"#\", \"$SYS/#\", \"$share/#\"]\n";
        let policy = policy_file::parse(text).unwrap();
        for (action, topic, expected) in [
            (Wanted::Publish, "$SYS/x", false),
            (Wanted::Publish, "$SYS/broker/connection/a/state", true),
            (Wanted::Publish, "$share/g/x", false),
            (Wanted::Publish, "x", true),
            (Wanted::Publish, "$other/x", false),
            (Wanted::Subscribe, "$SYS/#", true),
            (Wanted::Subscribe, "$share/g/x", true),
            (Wanted::Receive, "$SYS/x", true),
        ] {
            let test = TestArgs {
                file: PathBuf::new(),
                action,
                topic: topic.into(),
                client_id: "c1".into(),
                username: None,
                attributes: Vec::new(),
                qos: 0,
                retain: false,
                address: None,
                listener: String::new(),
            };
            let client = Client::new(&test);
            assert_eq!(client.may(&policy), expected, "{action:?} {topic}");
            assert!(expected || client.why_denied(&policy).starts_with(':'), "{topic}");
        }
    }

    #[test]
    fn attributes_are_texts_numbers_and_lists() {
        let text = |text: &str| Attribute::Text(text.into());
        assert_eq!(attribute("a=b"), Ok(("a".into(), text("b"))));
        assert_eq!(attribute("a=7"), Ok(("a".into(), Attribute::Number(7.into()))));
        assert_eq!(attribute("a=\"7\""), Ok(("a".into(), text("7"))));
        assert_eq!(attribute("a=b=c"), Ok(("a".into(), text("b=c"))));
        assert_eq!(attribute("a=007").unwrap_err().matches("007").count(), 2);
        assert!(attribute("a").is_err());
        assert!(attribute("=a").is_err());
        let given = [("a".into(), text("x")), ("a".into(), text("y")), ("b".into(), text("z"))];
        let attributes = Attributes::new(lists_of(&given));
        assert_eq!(attributes.get("a"), Some(&Attribute::List([text("x"), text("y")].into())));
        assert_eq!(attributes.get("b"), Some(&text("z")));
    }
}
