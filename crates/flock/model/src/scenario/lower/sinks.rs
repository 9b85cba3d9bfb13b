//! Sinks: what the broker routes messages to.

use std::ops::Range;

use toml::Spanned;

use super::super::format::{self, SinkKind as Kind};
use super::{Lowered, Lowering};
use crate::model::{
    Command, KafkaSink, STAMP_BYTES, Scenario, Sink, SinkKind, SinkLogin, SinkTls, TopicsId,
    WebhookSink,
};

impl Lowering<'_> {
    /// The sinks of a scenario that has everything else.
    pub(super) fn sinks(&self, scenario: &Scenario) -> Lowered<Vec<Sink>> {
        let mut sinks = Vec::new();
        for name in super::in_order(&self.parsed.sink) {
            sinks.push(self.sink(name, scenario)?);
        }
        Ok(sinks)
    }

    fn sink(&self, name: &str, scenario: &Scenario) -> Lowered<Sink> {
        let spanned = &self.parsed.sink[name];
        let (given, header) = (spanned.get_ref(), self.header_of(spanned.span()));
        let wrong =
            |message: String| self.error(header.clone(), format!("sink `{name}`: {message}"));
        if scenario.search.is_some() {
            return Err(wrong("a sink is not possible with [search]".to_owned()));
        }
        if let Some((key, span)) = foreign_key(given) {
            let kind = if given.kind == Kind::Kafka { "webhook" } else { "kafka" };
            return Err(self.error(span, format!("`{key}` needs kind = \"{kind}\"")));
        }
        let kind = match given.kind {
            Kind::Kafka => SinkKind::Kafka(self.kafka(given, &wrong)?),
            Kind::Webhook => SinkKind::Webhook(self.webhook(given, &wrong)?),
        };
        let published = published(scenario);
        if published.is_empty() {
            return Err(wrong("no client publishes".to_owned()));
        }
        let topics = match &given.topics {
            None => published.iter().map(|(topics, _)| *topics).collect(),
            Some(names) => {
                let mut found = Vec::new();
                for name in &names.get_ref().0 {
                    let at = self.find_at(&self.topics, name, names.span(), "topic group")?;
                    if !published.iter().any(|(topics, _)| *topics == TopicsId(at)) {
                        let message = format!("no client publishes to the topic group `{name}`");
                        return Err(self.error(names.span(), message));
                    }
                    found.push(TopicsId(at));
                }
                found
            }
        };
        let is_ours = |topics: &TopicsId| published.contains(&(*topics, true));
        if !topics.iter().all(is_ours) {
            return Err(wrong(format!(
                "its messages need a stamp: payloads of at least {STAMP_BYTES} bytes, without \
                 `unstamped = true`"
            )));
        }
        let drain_us = given.drain.map_or(DRAIN_US, |time| time.0);
        Ok(Sink { id: name.to_owned(), kind, topics, drain_us })
    }

    fn kafka(&self, given: &format::Sink, wrong: Wrong<'_>) -> Lowered<KafkaSink> {
        let Some(servers) = &given.servers else {
            return Err(wrong("`servers` is missing, such as \"127.0.0.1:9092\"".to_owned()));
        };
        let span = servers.span();
        // A parameter is one text.
        let all = servers.get_ref().0.iter().flat_map(|some| some.split(','));
        let servers: Vec<String> = all.map(|server| server.trim().to_owned()).collect();
        for server in &servers {
            self.address("servers", server, span.clone())?;
        }
        let Some(topic) = &given.topic else {
            return Err(wrong("`topic` is missing: the name of a topic of Kafka".to_owned()));
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let name = topic.get_ref();
        if name.is_empty() || name.len() > TOPIC_BYTES_MAX || !name.chars().all(is_name) {
            let message = format!(
                "`topic`: must have 1 to {TOPIC_BYTES_MAX} of the characters a-z, A-Z, 0-9, `.`, \
                 `_` and `-`, got `{name}`"
            );
            return Err(self.error(topic.span(), message));
        }
        let tls = given.tls.as_ref().map(|tls| self.tls_of(tls)).transpose()?;
        Ok(KafkaSink { servers, topic: name.clone(), tls, login: self.sink_login(given)? })
    }

    fn tls_of(&self, spanned: &Spanned<SinkTls>) -> Lowered<SinkTls> {
        let tls = spanned.get_ref();
        let wrong = match tls {
            _ if tls.cert_file.is_some() != tls.key_file.is_some() => {
                "`cert_file` and `key_file` need each other"
            }
            _ if tls.insecure && tls.ca_file.is_some() => {
                "`insecure` accepts any certificate: remove it, or `ca_file`"
            }
            _ => return Ok(tls.clone()),
        };
        Err(self.error(spanned.span(), wrong))
    }

    fn sink_login(&self, given: &format::Sink) -> Lowered<Option<SinkLogin>> {
        let mechanism = given.mechanism.as_ref();
        match (&given.username, &given.password) {
            (Some(username), Some(password)) => Ok(Some(SinkLogin {
                mechanism: mechanism.map(|given| *given.get_ref()).unwrap_or_default(),
                username: username.get_ref().clone(),
                password: password.get_ref().clone(),
            })),
            (None, None) => match mechanism {
                None => Ok(None),
                Some(given) => {
                    Err(self.error(given.span(), "`mechanism` needs `username` and `password`"))
                }
            },
            (Some(one), None) | (None, Some(one)) => {
                Err(self.error(one.span(), "`username` and `password` need each other"))
            }
        }
    }

    fn webhook(&self, given: &format::Sink, wrong: Wrong<'_>) -> Lowered<WebhookSink> {
        let Some(listen) = &given.listen else {
            return Err(wrong("`listen` is missing, such as \"127.0.0.1:8080\"".to_owned()));
        };
        self.address("listen", listen.get_ref(), listen.span())?;
        if let Some(path) = &given.path
            && !path.get_ref().starts_with('/')
        {
            let message = format!("`path`: must begin with `/`, got `{}`", path.get_ref());
            return Err(self.error(path.span(), message));
        }
        if let Some(refuse) = &given.refuse {
            let given = refuse.get_ref();
            if !(400..=599).contains(&given.status) {
                let message = format!("`status`: must be from 400 to 599, got {}", given.status);
                return Err(self.error(refuse.span(), message));
            }
            if !(given.share > 0.0 && given.share < 1.0) {
                let message = format!("`share`: must be above 0 and below 1, got {}", given.share);
                return Err(self.error(refuse.span(), message));
            }
        }
        Ok(WebhookSink {
            listen: listen.get_ref().clone(),
            path: given.path.as_ref().map(|path| path.get_ref().clone()),
            delay_us: given.delay.as_ref().map_or(0, |time| time.get_ref().0),
            refuse: given.refuse.as_ref().map(|refuse| *refuse.get_ref()),
        })
    }

    fn address(&self, key: &str, address: &str, span: Range<usize>) -> Lowered<()> {
        match net::host_and_port(address) {
            Ok((host, Some(_))) if !host.is_empty() => Ok(()),
            _ => Err(self.error(span, format!("`{key}`: must be host:port, got `{address}`"))),
        }
    }
}

type Wrong<'a> = &'a dyn Fn(String) -> super::ScenarioError;

/// A key of the other kind, and where it is.
fn foreign_key(given: &format::Sink) -> Option<(&'static str, Range<usize>)> {
    fn span<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
        value.as_ref().map(Spanned::span)
    }
    let kafka = [
        ("servers", span(&given.servers)),
        ("topic", span(&given.topic)),
        ("tls", span(&given.tls)),
        ("mechanism", span(&given.mechanism)),
        ("username", span(&given.username)),
        ("password", span(&given.password)),
    ];
    let webhook = [
        ("listen", span(&given.listen)),
        ("path", span(&given.path)),
        ("delay", span(&given.delay)),
        ("refuse", span(&given.refuse)),
    ];
    let foreign = if given.kind == Kind::Kafka { &webhook[..] } else { &kafka[..] };
    foreign.iter().find_map(|(key, span)| Some((*key, span.clone()?)))
}

/// The topic groups that clients publish to, each once, and whether all its messages are stamped.
fn published(scenario: &Scenario) -> Vec<(TopicsId, bool)> {
    let mut all: Vec<(TopicsId, bool)> = Vec::new();
    scenario.each_command(&mut |_, _, command| {
        let Command::Publish(publish) = command else { return };
        match all.iter_mut().find(|(topics, _)| *topics == publish.topics) {
            Some((_, stamped)) => *stamped &= publish.payload.stamped,
            None => all.push((publish.topics, publish.payload.stamped)),
        }
    });
    all
}

const DRAIN_US: u64 = 30_000_000;
/// By Kafka's own rule.
const TOPIC_BYTES_MAX: usize = 249;

#[cfg(test)]
mod tests {
    use crate::model::{Mechanism, Refuse, SinkKind};
    use crate::scenario::{Choice, ScenarioError, parse};
    use crate::{Scenario, TopicsId};

    const PUBLISHING: &str = r#"
        id = "routed"
        title = "routed"
        [clients.pub]
        count = 4
        [topics.own]
        names = "own/{i}"
        count = 4
        [topics.other]
        names = "other/{i}"
        count = 4
        [topics.silent]
        names = "silent"
        [[stage]]
        name = "publish"
        [[stage.do]]
        clients = "pub"
        steps = [
            { connect = {} },
            { publish = { to = "own", count = 1, payload = 16 } },
            { publish = { to = "other", count = 1, payload = 8 } },
        ]
    "#;

    fn read(sink: &str) -> Result<Scenario, ScenarioError> {
        let text = format!("{PUBLISHING}\n[sink.hub]\ntopics = \"own\"\n{sink}");
        parse("x.toml", &text, &Choice::default(), &|name| Err(name.to_owned()))
            .map(|loaded| loaded.scenario)
    }

    #[test]
    fn a_kafka_sink_has_its_defaults() {
        let scenario = read("kind = \"kafka\"\nservers = \"a:1, b:2\"\ntopic = \"t\"").unwrap();
        let [sink] = &scenario.sinks[..] else { panic!("one sink") };
        assert_eq!((sink.id.as_str(), sink.drain_us), ("hub", 30_000_000));
        assert_eq!(sink.topics, [TopicsId(0)]);
        let SinkKind::Kafka(kafka) = &sink.kind else { panic!("{sink:?}") };
        assert_eq!(kafka.servers, ["a:1", "b:2"]);
        assert_eq!((&kafka.tls, &kafka.login), (&None, &None));
        assert_eq!(sink.kind.to_string(), "topic t of Kafka at a:1, b:2");
        // An agent publishes; whoever leads the run reads.
        assert_eq!(scenario.part(0, 2).sinks, []);
    }

    #[test]
    fn a_login_is_read_and_its_password_never_shown() {
        let text = r#"
            kind = "kafka"
            servers = ["a:1"]
            topic = "t"
            tls = { ca_file = "ca.pem" }
            mechanism = "scram-sha-512"
            username = "ann"
            password = "hunter2"
        "#;
        let sink = &read(text).unwrap().sinks[0];
        let SinkKind::Kafka(kafka) = &sink.kind else { panic!("{sink:?}") };
        let login = kafka.login.as_ref().unwrap();
        assert_eq!((login.mechanism, login.password.as_str()), (Mechanism::ScramSha512, "hunter2"));
        assert!(!format!("{sink:?} {}", sink.kind).contains("hunter2"));
        assert_eq!(sink.kind.to_string(), "topic t of Kafka at a:1, TLS");
    }

    #[test]
    fn a_webhook_may_be_slow_and_refuse() {
        let text = r#"
            kind = "webhook"
            listen = "127.0.0.1:0"
            path = "/events"
            drain = "5s"
            delay = "20ms"
            refuse = { status = 503, share = 0.25 }
        "#;
        let sink = &read(text).unwrap().sinks[0];
        let SinkKind::Webhook(webhook) = &sink.kind else { panic!("{sink:?}") };
        assert_eq!((webhook.delay_us, sink.drain_us), (20_000, 5_000_000));
        assert_eq!(webhook.refuse, Some(Refuse { status: 503, share: 0.25 }));
        assert_eq!(sink.kind.to_string(), "webhook at http://127.0.0.1:0/events");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_valid() {
        let kafka = "kind = \"kafka\"\nservers = \"a:1\"\ntopic = \"t\"\n";
        let hook = "kind = \"webhook\"\nlisten = \"127.0.0.1:0\"\n";
        for (text, words) in [
            ("kind = \"amqp\"".to_owned(), "valid names: kafka, webhook"),
            ("kind = \"kafka\"\ntopic = \"t\"".to_owned(), "`servers` is missing"),
            ("kind = \"kafka\"\nservers = \"a:1\"".to_owned(), "`topic` is missing"),
            ("kind = \"webhook\"".to_owned(), "`listen` is missing"),
            (kafka.replace("a:1", "a"), "`servers`: must be host:port, got `a`"),
            (kafka.replace("a:1", "a:1,"), "`servers`: must be host:port, got ``"),
            (kafka.replace("\"t\"", "\"t t\""), "got `t t`"),
            (format!("{kafka}listen = \"a:1\""), "`listen` needs kind = \"webhook\""),
            (format!("{hook}servers = \"a:1\""), "`servers` needs kind = \"kafka\""),
            (format!("{kafka}username = \"a\""), "`username` and `password` need each other"),
            (format!("{kafka}mechanism = \"plain\""), "`mechanism` needs `username`"),
            (format!("{kafka}mechanism = \"gssapi\""), "valid names: plain, scram-sha-256"),
            (format!("{kafka}tls = {{ cert_file = \"a\" }}"), "need each other"),
            (format!("{kafka}tls = {{ insecure = true, ca_file = \"a\" }}"), "any certificate"),
            (hook.replace("127.0.0.1:0", "127.0.0.1"), "`listen`: must be host:port"),
            (format!("{hook}path = \"events\""), "`path`: must begin with `/`, got `events`"),
            (format!("{hook}refuse = {{ status = 200, share = 0.5 }}"), "from 400 to 599, got 200"),
            (format!("{hook}refuse = {{ status = 500, share = 1.0 }}"), "above 0 and below 1"),
            (
                format!("{hook}[search]\nrate_min = 1\nrate_max = 2\nlatency_max = \"1s\""),
                "[search]",
            ),
        ] {
            let error = read(&text).expect_err(&text).to_string();
            assert!(error.contains(words), "{text}: {error}");
            assert!(error.contains("x.toml:"), "{text}: {error}");
        }
    }

    #[test]
    fn topics_of_a_sink_are_published_to_with_stamps() {
        let with = |topics: &str| {
            let text = format!(
                "{PUBLISHING}\n[sink.hub]\nkind = \"webhook\"\nlisten = \"127.0.0.1:0\"\n{topics}"
            );
            parse("x.toml", &text, &Choice::default(), &|name| Err(name.to_owned()))
                .map(|loaded| loaded.scenario.sinks[0].topics.clone())
                .map_err(|error| error.to_string())
        };
        assert_eq!(with("topics = [\"own\"]").unwrap(), [TopicsId(0)]);
        for (topics, words) in [
            ("topics = \"ownn\"", "unknown topic group `ownn`"),
            ("topics = \"silent\"", "no client publishes to the topic group `silent`"),
            ("topics = [\"own\", \"other\"]", "its messages need a stamp"),
            ("", "its messages need a stamp"),
        ] {
            let error = with(topics).expect_err(topics);
            assert!(error.contains(words), "{topics}: {error}");
        }
    }
}
