//! What clients may do, and the rule that decides it.

use std::net::IpAddr;
use std::path::Path;

use broker::command::{Asker, Explained, Question};
use broker::{Answer, Command, Name, Scope};
use identity::auth::{written_attributes, written_rules};
use policy::{Action, Decider, Manner, Principal, Source};
use serde_json::Value;

use super::call::Call;
use super::clients::{check_filter, check_topic};
use super::paging::other_answer;
use super::problem::Problem;
use super::route::Outcome;
use super::schema::{Rows, record};
use super::views::qos_of;
use super::{Api, json, scopes};

record! {
    /// A decision about a client, with the rule that decides it.
    Permission {
        /// The namespace of the client.
        namespace: String,
        /// The client ID.
        client_id: String,
        /// The username; null: none.
        username: Option<String>,
        /// Whether it is connected.
        connected: bool,
        /// The attributes that are known of the client.
        attributes: Vec<ClientAttribute>,
        /// publish, subscribe or receive.
        action: String,
        /// The topic, or the filter of a subscription.
        topic: String,
        /// The client may do it; null: the authorization service is asked.
        allowed: Option<bool>,
        /// The source of the decision.
        /// A rule: access_file, policy_file, or credential (of a token or an HTTP service).
        /// service: no rule decides, so the authorization service is asked.
        /// default: no rule grants it. unknown_attributes: until the client is back.
        /// Otherwise no_rules, superuser, accept_all_subscriptions or broker_topic.
        decided_by: String,
        /// The filter of the rule that decides; null: no rule decides, or it is about every topic.
        rule: Option<String>,
        /// Whether this rule allows or denies.
        effect: Option<String>,
        /// The binding of the policy file that the rule belongs to.
        binding: Option<String>,
        /// The file of the rule.
        file: Option<String>,
        /// The line of the rule in its file.
        line: Option<u32>,
    }
}

record! {
    /// A file with access rules, as the broker has read it.
    RuleFile {
        /// The namespace that the rules are for.
        namespace: String,
        /// access_file or policy_file.
        source: String,
        /// The path of the file.
        path: String,
        /// The text, at most 1 MiB.
        text: String,
        /// The text is longer.
        is_cut: bool,
    }
}

record! {
    /// An attribute of a client.
    ClientAttribute {
        /// Its name.
        name: String,
        /// Its value, or the values of a list, as text.
        values: Vec<String>,
    }
}

record! {
    /// A client that need not be connected, and what it may want to do.
    PermissionQuestion {
        /// The client ID.
        client_id: String,
        /// The username, as if authentication had confirmed it.
        username: Option<String>,
        /// An object with the attributes that its credential would state: texts, numbers or lists.
        attributes: Option<Value>,
        /// The access rules that its credential would state, in EMQX's format: a list of rules, or
        /// an object of pub, sub and all.
        acl: Option<Value>,
        /// The address of the client. Without it, rules that ask for addresses allow nothing.
        address: Option<String>,
        /// The name of the listener. Without it, rules that ask for listeners allow nothing.
        listener: Option<String>,
        /// publish, subscribe or receive.
        action: String,
        /// The topic, or the filter of a subscription.
        topic: String,
        /// 0 to 2; 0 if omitted.
        qos: Option<u8>,
        /// The publish has the retain flag.
        retain: Option<bool>,
    }
}

/// About a client with a session.
pub(crate) async fn of_client(api: &Api, call: &Call) -> Outcome {
    let scope = scopes::of_one(api, call)?;
    let client_id = call.needed("client_id");
    let manner = Manner {
        qos: call.number("qos").unwrap_or_default() as u8,
        retain: call.flag("retain").unwrap_or_default(),
    };
    let (action, topic) = (call.needed("action"), call.needed("topic"));
    let question = Question {
        who: Asker::Session(client_id.into()),
        action: action_of(api, "query parameter", action, topic)?,
        topic: topic.into(),
        manner,
    };
    match ask(api, scope, client_id, question.clone()).await? {
        Some(explained) => json(&Permission::of(api, scope, client_id, &question, *explained)),
        None => Err(scopes::missing_client(api, scope, client_id, false).await),
    }
}

/// About one that is described.
pub(crate) async fn explain(api: &Api, call: &Call) -> Outcome {
    let scope = scopes::of_one(api, call)?;
    let PermissionQuestion {
        client_id,
        username,
        attributes,
        acl,
        address,
        listener,
        action,
        topic,
        qos,
        retain,
    } = call.body()?;
    let bad = |field: &str, detail: String| Problem::bad(format!("body, {field}"), detail);
    let attributes = attributes.as_ref().map(written_attributes).transpose();
    let attributes = attributes.map_err(|detail| bad("attributes", detail))?;
    let rules = acl.as_ref().map(|acl| written_rules(acl, &client_id, username.as_deref()));
    let rules = rules.transpose().map_err(|detail| bad("acl", detail))?;
    let principal = (attributes.is_some() || rules.is_some()).then(|| {
        let (attributes, rules) = (attributes.unwrap_or_default(), rules.unwrap_or_default());
        Box::new(Principal { attributes, rules, ..Principal::default() })
    });
    let address = address.map(|text| {
        let address = text.parse::<IpAddr>();
        address.map_err(|_| bad("address", format!("must be an IP address, got '{text}'")))
    });
    let known = api.facts.config.listeners.iter().map(|own| own.name.as_str());
    if let Some(name) = &listener
        && !known.clone().any(|own| own == name)
    {
        let names = known.collect::<Vec<_>>().join(", ");
        return Err(bad("listener", format!("unknown listener '{name}'; valid: {names}")));
    }
    let Some(qos) = qos_of(qos) else {
        return Err(bad("qos", "must be between 0 and 2".into()));
    };
    let question = Question {
        who: Asker::Described {
            client_id: client_id.as_str().into(),
            username: username.map(Into::into),
            principal,
            address: address.transpose()?,
            listener: listener.unwrap_or_default().into(),
        },
        action: action_of(api, "body,", &action, &topic)?,
        topic: topic.into(),
        manner: Manner { qos: qos as u8, retain: retain.unwrap_or_default() },
    };
    match ask(api, scope, &client_id, question.clone()).await? {
        Some(explained) => json(&Permission::of(api, scope, &client_id, &question, *explained)),
        None => Err(other_answer()),
    }
}

async fn ask(
    api: &Api,
    scope: Scope,
    client_id: &str,
    question: Question,
) -> Result<Option<Box<Explained>>, Problem> {
    let home = api.shards.shared.place_of_client(Name::new(scope, client_id));
    match api.shards.ask(home, scope, Command::Explain(Box::new(question))).await? {
        Answer::Explained(explained) => Ok(explained),
        _ => Err(other_answer()),
    }
}

/// The action, with a topic that fits it.
fn action_of(api: &Api, place: &str, word: &str, topic: &str) -> Result<Action, Problem> {
    let action = match word {
        "publish" => Action::Publish,
        "subscribe" => Action::Subscribe,
        "receive" => Action::Receive,
        _ => {
            let detail = format!("must be publish, subscribe or receive, got '{word}'");
            return Err(Problem::bad(format!("{place} action"), detail));
        }
    };
    let place = format!("{place} topic");
    match action {
        Action::Subscribe => {
            let filter = topic.strip_prefix("$share/").and_then(|rest| rest.split_once('/'));
            check_filter(api, &place, filter.map_or(topic, |(_, filter)| filter))?;
        }
        Action::Publish | Action::Receive => check_topic(api, &place, topic)?,
    }
    Ok(action)
}

/// The files of rules that hold now.
pub(crate) fn files(api: &Api) -> Outcome {
    let files = api.facts.rule_files.get();
    let items = files.iter().map(|file| {
        let end = file.text.floor_char_boundary(TEXT_BYTES_MAX);
        RuleFile {
            namespace: file.namespace.clone(),
            source: file.source.as_str().to_owned(),
            path: file.path.display().to_string(),
            text: file.text[..end].to_owned(),
            is_cut: end < file.text.len(),
        }
    });
    json(&Rows { items: items.collect(), cursor: None })
}

/// Of a file, so much is shown.
const TEXT_BYTES_MAX: usize = 1024 * 1024;

impl Permission {
    fn of(
        api: &Api,
        scope: Scope,
        client_id: &str,
        question: &Question,
        explained: Explained,
    ) -> Self {
        let Explained { explanation, username, attributes, is_connected } = explained;
        let namespace = scopes::name(api, scope);
        let rule = match &explanation.decider {
            Decider::Rule(rule) => Some(rule),
            _ => None,
        };
        let attributes = attributes
            .iter()
            .map(|(name, value)| ClientAttribute { name: name.to_owned(), values: value.texts() });
        Self {
            client_id: client_id.to_owned(),
            username: username.map(Into::into),
            connected: is_connected,
            attributes: attributes.collect(),
            action: word_of(question.action).to_owned(),
            topic: question.topic.to_string(),
            allowed: (question.action == Action::Receive
                || explanation.decider != Decider::Service)
                .then_some(explanation.is_allowed),
            decided_by: explanation.decider.as_str().to_owned(),
            rule: rule.map(|it| it.filter.to_string()).filter(|filter| !filter.is_empty()),
            effect: rule.map(|it| if it.allows { "allow" } else { "deny" }.to_owned()),
            binding: rule.and_then(|it| it.origin.name.as_deref()).map(str::to_owned),
            file: rule
                .and_then(|it| file_of(api, scope, it.origin.source))
                .map(|path| path.display().to_string()),
            line: rule.map(|it| it.origin.line).filter(|line| *line > 0),
            namespace,
        }
    }
}

const fn word_of(action: Action) -> &'static str {
    match action {
        Action::Publish => "publish",
        Action::Subscribe => "subscribe",
        Action::Receive => "receive",
    }
}

/// The file of the namespace.
fn file_of(api: &Api, scope: Scope, source: Source) -> Option<&Path> {
    let config = &api.facts.config;
    let name = scopes::name(api, scope);
    let (acl_file, policy_file) = match config.namespaces.iter().find(|own| own.name == name) {
        Some(own) => (&own.acl_file, &own.policy_file),
        None => (&config.access.acl_file, &config.access.policy_file),
    };
    match source {
        Source::AccessFile => acl_file.as_deref(),
        Source::PolicyFile => policy_file.as_deref(),
        Source::Credential | Source::Unknown => None,
    }
}
