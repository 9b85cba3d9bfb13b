//! `quelea policy`: checks a policy file, and explains what it decides.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use policy::{
    Access, Action, ClientLocation, Decider, DecidingRule, Explanation, Identity, Manner,
};
use policy::{Attribute, Attributes, Number, Origin, Principal, Source};

use config::{Config, ConfigError, Machine, SourceFile, Sources};
use identity::auth::acl_file::{self, AclFileError};
use identity::auth::policy_file::{self, Policy, PolicyFileError};
use identity::auth::{TokenCheck, TokenHolder, TokenLogin, read_token};

use base::{EXIT_FAILURE, EXIT_OK, EXIT_UNDECIDED, EXIT_USAGE, complain, print, wall_ms};

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
    /// Exit code: 0 allowed, 1 denied, 2 invalid file or arguments, or a refused login. Exit code
    /// 6: undecided, because the authorization service decides. It is not asked.
    Test(Box<TestArgs>),
}

#[derive(Clone, Debug, Args)]
struct TestArgs {
    /// The policy file.
    file: PathBuf,
    /// An access file that is in force together with the policy.
    #[arg(long, value_name = "FILE")]
    acl_file: Option<PathBuf>,
    /// A file with the token of the client (JWT), or with its claims as a JSON object. It gives the
    /// username, attributes and access rules. Without `--config` it is not verified.
    #[arg(long, value_name = "FILE", conflicts_with = "attributes")]
    token: Option<PathBuf>,
    /// The configuration of the broker. Its providers verify the token. Its `[authorization]` makes
    /// what no rule decides undecided. Its access file is used if `--acl-file` is not given.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
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
        PolicyCommand::Check { file } => {
            let policy = policy_file::load(file, None).map_err(PolicyTestError::from);
            policy.map(|policy| {
                print(summary(&policy).as_bytes());
                EXIT_OK
            })
        }
        PolicyCommand::Test(test) => explain(test),
    };
    decided.unwrap_or_else(|error| {
        complain(&error);
        EXIT_USAGE
    })
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
enum PolicyTestError {
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    #[error(transparent)]
    Access(#[from] AclFileError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: the broker refuses a login with this token: {why}", path = path.display())]
    Token { path: PathBuf, why: String },
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

fn explain(test: &TestArgs) -> Result<u8, PolicyTestError> {
    let policy = policy_file::load(&test.file, None)?;
    let config = test.config.as_deref().map(configuration).transpose()?;
    let config = config.as_ref();
    let listed = config.and_then(|config| config.access.acl_file.as_ref());
    let mut rules = match test.acl_file.as_ref().or(listed) {
        Some(path) => acl_file::load(path, None)?,
        None => Vec::new(),
    };
    rules.extend(policy.rules());
    // Both files are known to be right.
    let access = Access::compile_from(&rules).unwrap_or_default();
    let access = access.in_order(&policy.ordered).unwrap_or_default();
    let access = access.accepting_all_subscriptions(
        config.is_some_and(|config| config.access.accept_all_subscriptions),
    );
    let service = config.and_then(|config| config.authorization.as_ref());
    let access = if service.is_some() { access.asking_service() } else { access };
    let client = Client::new(test, config)?;
    let explanation = client.explain(&access);
    let mut text = client.shown_token();
    text.push_str(&client.groups(&policy));
    text.push_str(&client.verdict(&policy, &explanation));
    print(text.as_bytes());
    Ok(match (&explanation.decider, explanation.is_allowed) {
        (Decider::Service, _) => EXIT_UNDECIDED,
        (_, true) => EXIT_OK,
        (_, false) => EXIT_FAILURE,
    })
}

fn configuration(path: &Path) -> Result<Config, PolicyTestError> {
    let file = SourceFile { path: path.to_owned(), text: read(path)? };
    let sources = Sources { file: Some(file), ..Sources::default() };
    Ok(config::load(&sources, &Machine::here())?.config)
}

fn read(path: &Path) -> Result<String, PolicyTestError> {
    let fail = |source| PolicyTestError::Read { path: path.to_owned(), source };
    std::fs::read_to_string(path).map_err(fail)
}

/// Who asks, and for what.
struct Client<'a> {
    test: &'a TestArgs,
    username: Option<String>,
    principal: Principal,
    /// None: it has no token.
    token: Option<TokenCheck>,
}

impl<'a> Client<'a> {
    fn new(test: &'a TestArgs, config: Option<&Config>) -> Result<Self, PolicyTestError> {
        let Some(path) = &test.token else {
            let attributes = Attributes::new(lists_of(&test.attributes));
            let principal = Principal { attributes, ..Principal::default() };
            return Ok(Self { test, username: test.username.clone(), principal, token: None });
        };
        let login = TokenLogin {
            client_id: &test.client_id,
            username: test.username.as_deref(),
            now_secs: wall_ms() / 1000,
        };
        let providers = config.map(|config| &*config.authentication);
        let holder = read_token(&read(path)?, login, providers);
        let holder = holder.map_err(|why| PolicyTestError::Token { path: path.clone(), why })?;
        let TokenHolder { username, principal, check } = holder;
        Ok(Self { test, username, principal, token: Some(check) })
    }

    /// Whether the token was verified, as everything after it depends on that.
    fn shown_token(&self) -> String {
        let username = self.username.as_deref().unwrap_or_default();
        match &self.token {
            None => String::new(),
            Some(TokenCheck::Verified { provider }) => {
                format!("token: verified by provider '{provider}', username '{username}'\n")
            }
            Some(TokenCheck::Unverified { why }) => {
                format!("token: NOT verified ({why}), username '{username}'\n")
            }
        }
    }

    fn identity(&self) -> Identity<'_> {
        let principal = Some(&self.principal);
        let (client_id, username) = (&*self.test.client_id, self.username.as_deref());
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

    /// What the broker would do, asked of what the broker asks.
    fn explain(&self, access: &Access) -> Explanation {
        let place = ClientLocation { address: self.test.address, listener: &self.test.listener };
        let grants = access.grants_of(self.identity(), place);
        grants.explain(self.identity(), self.action(), &self.test.topic, self.manner())
    }

    fn verdict(&self, policy: &Policy, explanation: &Explanation) -> String {
        let word = match (&explanation.decider, explanation.is_allowed) {
            (Decider::Service, _) => "undecided",
            (_, true) => "allowed",
            (_, false) => "denied",
        };
        let why = match &explanation.decider {
            Decider::Rule(rule) => format!("\n  {}", in_words(policy, rule)),
            Decider::BrokerTopic => {
                " the topic belongs to the broker, or begins a shared subscription".to_owned()
            }
            Decider::Service if self.action() == Action::Receive => {
                " no rule denies it. The authorization service decides the subscription; this test \
                 did not ask it"
                    .to_owned()
            }
            Decider::Service => {
                " no rule decides it. In operation the authorization service does; this test did \
                 not ask it"
                    .to_owned()
            }
            Decider::AllSubscriptionsAccepted => {
                " accept_all_subscriptions is set. Messages are checked when they are delivered"
                    .to_owned()
            }
            _ => self.no_grant(policy),
        };
        format!("{word}:{why}\n")
    }

    fn no_grant(&self, policy: &Policy) -> String {
        let rules = match policy.ordered.is_empty() && self.principal.rules.is_empty() {
            true => "",
            false => "no rule applies, and ",
        };
        let missing = self.missing(policy).into_iter().map(|it| format!("\n  {it}"));
        format!(" {rules}no binding of its groups grants it{}", missing.collect::<String>())
    }

    const fn manner(&self) -> Manner {
        Manner { qos: self.test.qos, retain: self.test.retain }
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

/// A rule with where it stands.
fn in_words(policy: &Policy, rule: &DecidingRule) -> String {
    let DecidingRule { allows, filter, origin } = rule;
    let Origin { source, line, name } = origin;
    if let Some(name) = name {
        let mut templates = policy.spaces.iter().flat_map(|space| &space.templates);
        let template = templates.find(|template| template.line == *line as usize);
        let text = template.map_or(&**filter, |template| &template.text);
        return format!("{name}: '{text}' (line {line})");
    }
    match (source, allows) {
        (Source::PolicyFile, true) => format!("the rule in line {line} allows it"),
        (Source::PolicyFile, false) => format!("the rule in line {line} denies it"),
        (Source::Credential, _) => {
            let verb = if *allows { "allows" } else { "denies" };
            let about = if filter.is_empty() { "what it does not list" } else { filter };
            format!("the token {verb} it: '{about}'")
        }
        _ => rule.to_string(),
    }
}

/// An attribute of a client from a flag: `NAME=VALUE`, where a number is one unless it is quoted.
///
/// # Errors
///
/// It has no name, or a number with too many digits.
pub fn attribute(text: &str) -> Result<(String, Attribute), String> {
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
pub fn lists_of(attributes: &[(String, Attribute)]) -> Vec<(Box<str>, Attribute)> {
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
  quelea policy test policy.toml subscribe 'vehicles/#' -u anna -a role=fleet -a role=audit
  quelea policy test policy.toml publish up/c1 -i c1 --token token.jwt --config quelea.toml";

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
                acl_file: None,
                token: None,
                config: None,
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
            let client = Client::new(&test, None).unwrap();
            let explanation = client.explain(&policy.access().unwrap());
            assert_eq!(explanation.is_allowed, expected, "{action:?} {topic}");
            let verdict = client.verdict(&policy, &explanation);
            let word = if expected { "allowed:" } else { "denied:" };
            assert!(verdict.starts_with(word), "{topic}: {verdict}");
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
