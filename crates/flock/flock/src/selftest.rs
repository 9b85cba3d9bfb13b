//! `flock self-test`: is the lab awake on this machine?
//!
//! The [stand-in](crate::standin) does its whole repertoire of mischief, one thing at a time, and
//! each must be found in the words of the report. An honest stand-in must be found honest.

use codec::AckKind;

use crate::engine::{Options, RunError, run};
use crate::standin::{Damage, Mischief, RetainedMischief, StandIn, Unavailable, WillMischief};
use flock_measure::figures::{Verdict, search_words, verdicts};
use flock_measure::threshold::Threshold;
use flock_measure::{LatencyKind, Outcome, RateSearch, Results};
use flock_model::Scenario;
use flock_model::scenario::{Choice, parse};
use flock_report::expect::unmet;
use std::time::Duration;

/// One thing that a broker may do.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What the stand-in does, for the table.
    pub title: &'static str,
    /// Part of the short form.
    pub is_short: bool,
    mischief: Mischief,
    load: Load,
    sign: Sign,
}

/// What the clients do meanwhile.
#[derive(Clone, Copy, Debug)]
struct Load {
    qos: u8,
    is_shared: bool,
    /// Whether a tenth of the subscribers are cut ahead of what is published, and come back.
    is_cut: bool,
    /// Subscribers go and come back: the session that they ask for, and how long they are away.
    comes_back: Option<(&'static str, &'static str)>,
    /// Whether subscriptions have identifiers.
    has_identifiers: bool,
    /// Whether subscribers come while others publish.
    is_amid: bool,
    /// Whether subscribers come when all is published.
    is_late: bool,
    /// How publishers leave that have a will, on their own topics, if they do.
    wills: Option<&'static str>,
    /// The other keys of `publish`.
    publish: &'static str,
    /// Of the stage that publishes, where it has one.
    duration: &'static str,
    /// The highest rate is looked for from here on, in messages per second.
    search_from: Option<u64>,
}

/// How it must show.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// Nothing is found.
    Clean,
    /// These words stand in what speaks against the run.
    Words(&'static str),
    /// These words begin what is told first.
    Headline(&'static str),
    /// These words stand in a note.
    Noted(&'static str),
    /// Some latency is as long as that.
    Waited(Duration),
    /// A limit is not met, and these words say why.
    NotMet(&'static str, &'static str),
    /// The highest rate that holds is found to be about so many messages per second.
    Holds(u64),
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub title: &'static str,
    pub is_caught: bool,
    /// The report's words.
    pub told: String,
}

/// Why a case could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    #[error("cannot start the stand-in broker on this machine: {0}")]
    StandIn(#[from] std::io::Error),
    #[error("the scenario of the self-test: {0}")]
    Scenario(String),
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Tries every case, or those of the short form, some at a time.
pub fn self_test(is_short: bool) -> Result<Vec<Finding>, SelfTestError> {
    let all = cases();
    let chosen = all.iter().filter(|case| case.is_short || !is_short);
    // What a broker can take is looked for while nothing else happens.
    let (alone, others): (Vec<&Case>, Vec<&Case>) =
        chosen.partition(|case| case.load.search_from.is_some());
    let mut findings = Vec::new();
    for some in others.chunks(AT_ONCE).chain(alone.chunks(1)) {
        let tried: Vec<Result<Finding, SelfTestError>> = std::thread::scope(|scope| {
            let running: Vec<_> =
                some.iter().map(|case| scope.spawn(move || case.try_it())).collect();
            running.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        for finding in tried {
            findings.push(finding?);
        }
    }
    Ok(findings)
}

impl Case {
    fn try_it(&self) -> Result<Finding, SelfTestError> {
        let (scenario, results) = self.run()?;
        let (is_caught, told) = self.sign.is_in(&scenario, &results);
        Ok(Finding { title: self.title, is_caught, told })
    }

    fn run(&self) -> Result<(Scenario, Results), SelfTestError> {
        let broker = StandIn::start(self.mischief)?;
        let scenario = self.load.scenario(&broker.address)?;
        let results = run(&scenario, Options { threads: Some(2), ..Options::default() })?;
        Ok((scenario, results))
    }
}

impl Sign {
    /// Whether it is there, and what there is to be read.
    fn is_in(self, scenario: &Scenario, results: &Results) -> (bool, String) {
        let unmet = unmet(&scenario.expect, results);
        let bad = verdicts(results).into_iter().filter(|(is, _)| *is == Verdict::Bad);
        let against: Vec<String> = bad.map(|(_, words)| words).chain(unmet.clone()).collect();
        match self {
            Self::Clean => {
                let total = results.integrity.total();
                let is_clean = results.integrity.is_clean() && total.expected == total.received;
                let whole = results.run.outcome == Outcome::Completed && unmet.is_empty();
                let told = format!("{} of {} arrived as sent", total.received, total.expected);
                (is_clean && whole && total.expected > 0, told)
            }
            Self::Words(words) => {
                let found = against.iter().find(|line| line.contains(words));
                (found.is_some(), found.cloned().unwrap_or_else(|| against.join("; ")))
            }
            Self::Headline(words) => {
                let first = verdicts(results).into_iter().next();
                let first = first.map_or(String::new(), |(_, words)| words);
                (first.starts_with(words), first)
            }
            Self::Noted(words) => {
                let notes = &results.validity.notes;
                let found = notes.iter().find(|line| line.contains(words));
                (found.is_some(), found.cloned().unwrap_or_else(|| notes.join("; ")))
            }
            Self::Waited(at_least) => {
                let max_us = results.latency_merged(LatencyKind::EndToEnd).summary().max_us;
                let told = format!("latency of {} ms at most", max_us / 1_000);
                (u128::from(max_us) >= at_least.as_micros(), told)
            }
            Self::NotMet(limit, words) => {
                let limit = Threshold::parse(limit).map(|limit| limit.unmet(results));
                let told = limit.unwrap_or_else(Some).unwrap_or_else(|| "the limit is met".into());
                (told.contains(words), told)
            }
            Self::Holds(per_sec) => {
                let Some(found) = &results.rate_search else {
                    return (false, "no rate was searched".to_owned());
                };
                let told = format!("{} of {per_sec}/s", search_words(found));
                (is_around(found, scenario, per_sec), told)
            }
        }
    }
}

/// Whether the interval that was found has the rate in it that the stand-in really holds. What it
/// takes beyond it for a moment lifts the lower end a little.
fn is_around(found: &RateSearch, scenario: &Scenario, per_sec: u64) -> bool {
    let per_sec = per_sec as f64;
    let least = scenario.search.map_or(0.0, |search| search.rate_min as f64);
    found.rate_held >= least
        && found.steps.iter().all(|step| step.rate >= least)
        && found.rate_held <= per_sec * HELD_MAX
        && found.rate_failed.is_some_and(|failed| failed >= per_sec)
}

impl Load {
    /// The stages in which subscribers come, before and after what is published.
    fn subscribing(self) -> (String, String) {
        let identifier = if self.has_identifiers { ", identifier = 7" } else { "" };
        let subscribe =
            format!("{{ subscribe = {{ to = \"pairs\", qos = {}{identifier} }} }}", self.qos);
        let subscribers = format!(
            r#"
[[stage]]
name = "subscribe"
[[stage.do]]
clients = "sub"
steps = [{{ connect = {{}} }}, {subscribe}]"#
        );
        if self.is_amid {
            let steps = "steps = [{ delay = \"500ms\" }, { connect = {} }, ";
            let amid = format!("\n[[stage.do]]\nclients = \"sub\"\n{steps}{subscribe}]");
            return (String::new(), amid);
        }
        let hold = "\n[[stage]]\nname = \"hold\"\nduration = \"1100ms\"";
        match self.is_late {
            true => (String::new(), format!("{hold}{subscribers}")),
            false => (subscribers, String::new()),
        }
    }

    /// The stage in which subscribers go and come back.
    fn coming_back(self) -> String {
        let Some((_, away)) = self.comes_back else { return String::new() };
        let away = format!("{{ disconnect = {{}} }}, {{ delay = \"{away}\" }}");
        format!(
            "\n[[stage]]\nname = \"return\"\n[[stage.do]]\nclients = \"sub\"\n\
             steps = [{away}, {{ connect = {{}} }}]"
        )
    }

    fn scenario(self, address: &str) -> Result<Scenario, SelfTestError> {
        let Self { qos, publish, .. } = self;
        let duration = match self.duration {
            "" => String::new(),
            time => format!("duration = \"{time}\"\n"),
        };
        let (search, drain) = match self.search_from {
            // Steps of a hundred messages, and no long waits for what was dropped.
            Some(rate) => (format!("[search]\nrate_min = {rate}\n{SEARCH}"), "500ms"),
            None => (String::new(), "2s"),
        };
        let subscription = if self.is_shared { SHARED } else { "topics = \"pairs\"" };
        let leave = "steps = [{ disconnect = {} }]";
        let (before, mut after) = self.subscribing();
        let (cut, session) = if self.is_cut { (CUT, "reconnect = true") } else { ("", "") };
        let session = self.comes_back.map_or(session, |(session, _)| session);
        after += &self.coming_back();
        let mut connect = String::new();
        if let Some(how) = self.wills {
            connect = format!("will = {{ topics = \"pairs\", qos = {qos}, payload = 16 }}");
            after += &leaving_early(how);
        }
        let text = format!(
            r#"
id = "self-test"
title = "the stand-in's repertoire"
drain = "{drain}"
[connect]
version = "5"
{session}
[clients.sub]
count = 10
[clients.pub]
count = 10
[topics.pairs]
names = "pairs/{{i}}"
count = 10
[subscriptions.pairs]
{subscription}{before}
[[stage]]
name = "connect"
[[stage.do]]
clients = "pub"
steps = [{{ connect = {{ {connect} }} }}]{cut}
[[stage]]
name = "publish"
measured = true
{duration}[[stage.do]]
clients = "pub"
steps = [{{ publish = {{ to = "pairs", qos = {qos}, {publish} }} }}]{after}
[[stage]]
name = "disconnect"
[[stage.do]]
clients = "pub"
{leave}
[[stage.do]]
clients = "sub"
{leave}
{search}
"#
        );
        let no_file = |name: &str| Err(format!("no file {name}"));
        let loaded = parse("self-test.toml", &text, &Choice::default(), &no_file)
            .map_err(|error| SelfTestError::Scenario(error.to_string()))?;
        let mut scenario = loaded.scenario;
        for broker in &mut scenario.brokers {
            broker.addresses = vec![address.to_owned()];
        }
        Ok(scenario)
    }
}

/// The stage in which publishers go, and the time that their wills have.
fn leaving_early(how: &str) -> String {
    let steps = format!("steps = [{{ disconnect = {{ how = \"{how}\" }} }}]");
    format!(
        "\n[[stage]]\nname = \"leave\"\n[[stage.do]]\nclients = \"pub\"\n{steps}\n\
         [[stage]]\nname = \"hold\"\nduration = \"2200ms\""
    )
}

/// Publishers that have a will, and leave so.
const fn leaving(how: &'static str) -> Load {
    Load { wills: Some(how), ..pairs(1) }
}

/// Twenty messages from each of ten publishers.
const fn pairs(qos: u8) -> Load {
    Load {
        qos,
        is_shared: false,
        is_cut: false,
        comes_back: None,
        has_identifiers: false,
        is_amid: false,
        is_late: false,
        wills: None,
        publish: TWENTY,
        duration: "",
        search_from: None,
    }
}

/// What is retained, and subscribers who come later.
const fn retained(qos: u8) -> Load {
    Load { is_late: true, publish: TWENTY_RETAINED, ..pairs(qos) }
}

const fn shared(qos: u8) -> Load {
    as_group(pairs(qos))
}

const fn as_group(load: Load) -> Load {
    Load { is_shared: true, ..load }
}

fn case(title: &'static str, mischief: Mischief, load: Load, sign: Sign) -> Case {
    Case { title, is_short: false, mischief, load, sign }
}

fn damage(title: &'static str, what: Damage, load: Load, words: &'static str) -> Case {
    case(title, damage_of(what), load, Sign::Words(words))
}

fn damage_of(what: Damage) -> Mischief {
    Mischief { damage: Some(what), damage_every: 20, ..Mischief::default() }
}

/// The whole repertoire.
pub fn cases() -> Vec<Case> {
    let mut all = honest();
    all.extend(losses());
    all.extend(damages());
    all.extend(strays());
    all.extend(lies());
    all.extend(lies_of_retained());
    all.extend(lies_of_wills());
    all.extend(standstills());
    all.extend(breakdowns());
    all.push(limited());
    all
}

fn honest() -> Vec<Case> {
    let honest = |title, load| case(title, Mischief::default(), load, Sign::Clean);
    vec![
        in_short(honest("honest, QoS 0", pairs(0))),
        honest("honest, QoS 1", pairs(1)),
        honest("honest, QoS 2", pairs(2)),
        honest("honest, a shared group", shared(1)),
        honest("honest, properties", Load { publish: TWENTY_WITH_PROPERTIES, ..pairs(1) }),
        honest("honest, retained messages", retained(1)),
        honest("honest, wills", leaving("close")),
    ]
}

fn losses() -> Vec<Case> {
    let every = Mischief { lose_every: 20, ..Mischief::default() };
    let end = Mischief { lose_after: 50, ..Mischief::default() };
    let all = Mischief { lose_every: 1, ..Mischief::default() };
    let ten = Sign::Words("10 lost in 200 deliveries");
    let unknown = Sign::NotMet("p99 <= 60s", "p99 is unknown");
    let most = Sign::Words("150 lost in 200 deliveries");
    let deaf = Mischief { forgets_newcomers: true, ..Mischief::default() };
    let amid = Load { is_amid: true, publish: THREE_SECONDS, ..pairs(1) };
    let all_amid = Load { publish: A_SECOND, ..amid };
    let after = Some(Duration::from_millis(900));
    let swallows = Mischief { deaf_after_suback: after, ..Mischief::default() };
    let unjudged = Sign::Headline("not judged: ");
    vec![
        case("loses one in twenty, QoS 0", every, pairs(0), ten),
        in_short(case("loses one in twenty, QoS 1", every, pairs(1), ten)),
        case("loses one in twenty, QoS 2", every, pairs(2), ten),
        in_short(case("loses one in twenty: p99", every, pairs(0), unknown)),
        in_short(case("loses the last three quarters, QoS 0", end, pairs(0), most)),
        case("loses the last three quarters, QoS 1", end, pairs(1), most),
        case("loses the last three quarters, shared", end, shared(0), most),
        in_short(case("forgets late subscribers", deaf, amid, Sign::Words(" lost in "))),
        in_short(case("swallows 0.9 s after SUBACK", swallows, amid, Sign::Words(" lost in "))),
        case(
            "swallows 0.9 s after SUBACK, shared",
            swallows,
            as_group(amid),
            Sign::Words(" lost in "),
        ),
        case("swallows all there is after SUBACK", swallows, all_amid, Sign::Words(" lost in ")),
        case("loses what nobody can judge", swallows, all_amid, unjudged),
        case("delivers nothing, QoS 0", all, pairs(0), Sign::Words("200 lost in 200 deliveries")),
    ]
}

fn damages() -> Vec<Case> {
    let long = Load { publish: TWENTY_LONG, ..pairs(1) };
    vec![
        in_short(damage("flips a bit of the payload", Damage::Payload, long, "10 damaged")),
        damage("flips a bit of a payload of 16 B", Damage::Payload, pairs(0), "10 damaged"),
        damage("cuts the last byte off", Damage::Shortened, long, "10 damaged"),
        damage("adds a byte", Damage::Lengthened, long, "10 damaged"),
        damage("changes the due time", Damage::DueTime, pairs(1), "10 damaged"),
        damage("changes the number", Damage::Sequence, pairs(1), "10 damaged"),
        damage("changes the number, shared", Damage::Sequence, shared(1), "10 damaged"),
        in_short(damage("changes the topic", Damage::Topic, pairs(1), "10 with a wrong topic")),
        in_short(damage("lowers the QoS", Damage::LowerQos, pairs(2), "10 with a wrong QoS")),
        damage("sets the retain flag", Damage::RetainFlag, pairs(1), "10 with a wrong retain flag"),
    ]
}

fn strays() -> Vec<Case> {
    let twice = Mischief { duplicate_every: 20, ..Mischief::default() };
    let late = Mischief { duplicate_later: Some(Duration::from_millis(500)), ..twice };
    let shared_out = Mischief { share_twice_every: 2, ..Mischief::default() };
    let doubled = Sign::Words("10 duplicated without cause");
    let again = Mischief { repeat_every: 20, ..Mischief::default() };
    let marked = Mischief { mark_dup_every: 20, ..Mischief::default() };
    let twice_told = |kind| Mischief {
        acknowledge_twice: Some(kind),
        acknowledge_twice_every: 20,
        ..Mischief::default()
    };
    let pubacks = Sign::Words("10 PUBACKs sent twice");
    let pubrecs = Sign::Words("10 PUBRECs sent twice");
    let pubcomps = Sign::Words("10 PUBCOMPs sent twice");
    let swapped = Mischief { swap_every: 33, ..Mischief::default() };
    let aside = Mischief { misroute: true, ..Mischief::default() };
    let instead = Mischief { misdirect: true, ..Mischief::default() };
    vec![
        in_short(case("delivers twice", twice, pairs(1), doubled)),
        case("delivers twice, half a second later", late, pairs(1), doubled),
        in_short(case(
            "delivers twice after a cut elsewhere",
            twice,
            Load { is_cut: true, ..pairs(1) },
            doubled,
        )),
        case(
            "delivers to two group members",
            shared_out,
            Load { is_cut: true, ..shared(1) },
            Sign::Words("100 duplicated without cause"),
        ),
        case("sends QoS 2 again at once", again, pairs(2), doubled),
        in_short(case("marks new messages DUP", marked, pairs(1), Sign::Words("10 marked DUP"))),
        in_short(case("sends PUBACK twice", twice_told(AckKind::Puback), pairs(1), pubacks)),
        case("sends PUBREC twice", twice_told(AckKind::Pubrec), pairs(2), pubrecs),
        case("sends PUBCOMP twice", twice_told(AckKind::Pubcomp), pairs(2), pubcomps),
        case("changes the order", swapped, pairs(1), Sign::Words("out of order")),
        case("delivers to other clients as well", aside, pairs(0), Sign::Words("200 misrouted")),
        in_short(case(
            "delivers to other clients only",
            instead,
            pairs(0),
            Sign::Words("200 misrouted"),
        )),
    ]
}

/// What goes with a message, or is said of it.
fn lies() -> Vec<Case> {
    let described = Load { publish: TWENTY_WITH_PROPERTIES, ..pairs(1) };
    let wrong = "10 with wrong properties";
    let identifier = "10 with a wrong subscription identifier";
    let named = Load { has_identifiers: true, ..pairs(1) };
    let lacking = Mischief { claims_no: Some(Unavailable::Identifiers), ..Mischief::default() };
    let deny = Mischief { deny_every: 20, ..Mischief::default() };
    let denied = Sign::Words("10 delivered despite 0x10");
    let generous = Mischief { grants_more: true, ..Mischief::default() };
    let broken = Sign::Words("protocol errors");
    let holding = Mischief { unreleased_every: 20, ..Mischief::default() };
    let forcing = Mischief { forces: true, ..Mischief::default() };
    let modest = Mischief { claims_qos_0: true, ..Mischief::default() };
    let narrow = Mischief { claims_packet_bytes_max: 25, ..Mischief::default() };
    let unsent = Sign::Words("200 of 200 messages were due and not sent");
    let unfinished = Sign::Words("clients that could not finish their steps: 10");
    vec![
        in_short(damage("drops user properties", Damage::UserProperties, described, wrong)),
        damage("adds a content type", Damage::ContentType, pairs(0), wrong),
        damage("lengthens the expiry", Damage::Expiry, described, wrong),
        damage("lengthens the expiry by 1 s", Damage::LongerExpiry, described, wrong),
        damage("makes up a subscription identifier", Damage::Identifier, pairs(1), identifier),
        damage("repeats a subscription identifier", Damage::IdentifierTwice, named, identifier),
        damage("raises the QoS", Damage::HigherQos, pairs(1), "10 with a wrong QoS"),
        case("uses a topic alias above the maximum", damage_of(Damage::Alias), pairs(0), broken),
        in_short(case("acknowledges with 0x10, but delivers", deny, pairs(1), denied)),
        case("grants a higher QoS than requested", generous, pairs(1), broken),
        case("does not release QoS 2", holding, pairs(2), Sign::Words("10 without PUBREL")),
        case("sends to the publishers", forcing, pairs(0), Sign::Words("misrouted")),
        case("announces maximum QoS 0", modest, pairs(1), unsent),
        case("announces a small packet size", narrow, pairs(1), unsent),
        case("announces no subscription identifiers", lacking, named, unfinished),
    ]
}

fn lies_of_retained() -> Vec<Case> {
    let doing = |retained| Mischief { retained, ..Mischief::default() };
    let lost = Sign::Words("10 lost in 10 deliveries");
    let stale = Sign::Words("10 outdated retained messages");
    let flag = Sign::Words("10 with a wrong retain flag");
    let twice = Sign::Words("10 duplicated");
    vec![
        in_short(case("retains nothing", doing(RetainedMischief::Forgotten), retained(1), lost)),
        case(
            "sends an outdated retained message",
            doing(RetainedMischief::Stale),
            retained(1),
            stale,
        ),
        case("omits the retain flag", doing(RetainedMischief::Unmarked), retained(1), flag),
        case("sends retained messages twice", doing(RetainedMischief::Twice), retained(0), twice),
        case(
            "sends retained messages of other topics",
            doing(RetainedMischief::Misrouted),
            retained(1),
            Sign::Words("90 misrouted"),
        ),
    ]
}

fn lies_of_wills() -> Vec<Case> {
    let doing = |will| Mischief { will, ..Mischief::default() };
    let lost = Sign::Words("10 wills not delivered");
    let again = Sign::Words("10 wills delivered again");
    let unasked = Sign::Words("10 wills without cause");
    let aside = Sign::Words("10 misrouted");
    let again_marked = Mischief { mark_dup_every: 2, ..doing(WillMischief::Twice) };
    let (close, polite) = ("close", "message");
    vec![
        in_short(case("sends no wills", doing(WillMischief::Forgotten), leaving(close), lost)),
        case("sends wills twice", doing(WillMischief::Twice), leaving(close), again),
        case("sends wills after DISCONNECT", doing(WillMischief::Always), leaving(polite), unasked),
        case("sends wills to other clients", doing(WillMischief::Misrouted), leaving(close), aside),
        case("sends wills twice, marked DUP", again_marked, leaving(close), again),
    ]
}

fn standstills() -> Vec<Case> {
    let pause = Duration::from_millis(400);
    let short = Mischief { stall: Some((100, pause)), ..Mischief::default() };
    let over_the_end = Mischief { stall: Some((500, Duration::from_secs(4))), ..short };
    let windowed = Load { publish: ONE_AT_A_TIME, duration: "1s", ..pairs(1) };
    let slow = Mischief { delays_first: Some(pause), ..Mischief::default() };
    let deaf = Mischief { acknowledge_after: u64::MAX, ..Mischief::default() };
    let endless = Mischief { uncompleted_every: 20, ..Mischief::default() };
    let choosy = Mischief { refuse_every: 20, ..Mischief::default() };
    let refused = Sign::Words("messages refused by the broker: 10");
    let open = Sign::Words("10 messages were not acknowledged");
    let silent = Sign::Words("200 messages were not acknowledged");
    let unsent = Sign::Words("of 1,000 messages were due and not sent");
    vec![
        case("delays one subscriber", slow, pairs(1), Sign::Noted("times that of all clients")),
        case("pauses for 400 ms", short, pairs(0), Sign::Waited(pause * 9 / 10)),
        in_short(case("pauses at the end", over_the_end, windowed, unsent)),
        case("acknowledges nothing", deaf, pairs(1), silent),
        case("refuses one in twenty", choosy, pairs(1), refused),
        case("does not end QoS 2 exchanges", endless, pairs(2), open),
    ]
}

fn breakdowns() -> Vec<Case> {
    let going_on = Load { publish: STEADY, duration: "2s", ..pairs(1) };
    let dead = Mischief { die_after: 500, ..Mischief::default() };
    let curt = Mischief { hang_up_after: 50, ..Mischief::default() };
    let shut = Mischief { refuse: true, ..Mischief::default() };
    let strict = Mischief { refuse_subscriptions: true, ..Mischief::default() };
    let claims = Mischief { claims_sessions: true, ..Mischief::default() };
    let again = Mischief { claims_sessions_again: true, ..Mischief::default() };
    let ended = Load { comes_back: Some(("clean_start = false", "6s")), ..pairs(1) };
    let lasting = Load { comes_back: Some((AN_HOUR, "100ms")), ..pairs(1) };
    let alien = Mischief { answer_garbage: true, ..Mischief::default() };
    let lost = Sign::Words("connections lost without a fault");
    // A quarter of the stage, in which 1,000/s were due.
    let slow = Sign::NotMet("received_per_sec >= 400", "expected");
    let none = Sign::Words("no client could connect");
    vec![
        in_short(case("crashes", dead, going_on, lost)),
        case("crashes: rate", dead, going_on, slow),
        case("closes one connection", curt, pairs(0), lost),
        case("refuses all clients", shut, pairs(1), none),
        case(
            "refuses all subscriptions",
            strict,
            pairs(1),
            Sign::Words("subscriptions refused: 10"),
        ),
        case("does not speak MQTT", alien, pairs(1), none),
        case("reports a session for all clients", claims, pairs(1), none),
        case("reports a session that had ended", again, ended, Sign::Words("10 protocol errors")),
        case(
            "forgets sessions too early",
            Mischief::default(),
            lasting,
            Sign::Words("10 persistent sessions lost"),
        ),
    ]
}

/// Of what is more than it can deliver in a second, it drops the rest.
fn limited() -> Case {
    let limited = Mischief { deliver_per_sec: CAPACITY, ..Mischief::default() };
    let asked = Load {
        publish: UNTIL_THE_END,
        duration: "1s",
        search_from: Some(CAPACITY / 2),
        ..pairs(0)
    };
    case("can deliver 400 in a second", limited, asked, Sign::Holds(CAPACITY))
}

fn in_short(case: Case) -> Case {
    Case { is_short: true, ..case }
}

const SHARED: &str = "filter = \"$share/g/pairs/{i}\"\ncount = 10\nassign = \"all\"";
/// A fault, and the time to come back.
const CUT: &str = r#"
[[stage]]
name = "cut"
[[stage.do]]
steps = [{ fault = { cut = { clients = "sub", share = 0.1 } } }, { delay = "1s" }]"#;
const TWENTY: &str = "rate = \"200/s\", count = 20, payload = 16";
const AN_HOUR: &str = "clean_start = false\nsession_expiry = \"1h\"";
const A_SECOND: &str = "rate = \"50/s\", count = 60, payload = 16";
const THREE_SECONDS: &str = "rate = \"50/s\", count = 150, payload = 16";
const TWENTY_RETAINED: &str = "rate = \"200/s\", count = 20, payload = 16, retain = true";
const TWENTY_WITH_PROPERTIES: &str = "rate = \"200/s\", count = 20, payload = 16, \
     expiry = \"1h\", content_type = \"a/b\", user_properties = { one = \"1\", two = \"2\" }";
const TWENTY_LONG: &str = "rate = \"200/s\", count = 20, payload = 300";
const STEADY: &str = "rate = \"100/s\", payload = 16";
const UNTIL_THE_END: &str = "rate = \"10/s\", payload = 16";
const SEARCH: &str =
    "rate_max = 3200\npercentile = 90\nlatency_max = \"1s\"\nstep = \"500ms\"\nprecision = 0.2";
/// Deliveries a second of the stand-in that has a limit.
const CAPACITY: u64 = 400;
/// So many times its limit it holds for a step that confirms, by what it had saved up.
const HELD_MAX: f64 = 1.1;
const ONE_AT_A_TIME: &str = "rate = \"100/s\", payload = 16, in_flight = 1";
/// Cases that are tried side by side. Most of their time they wait for what does not come.
const AT_ONCE: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::RateStep;

    fn found(held: f64, failed: Option<f64>) -> RateSearch {
        let step = |rate: f64| RateStep { rate, ..RateStep::default() };
        let steps = [200.0, held].map(step).to_vec();
        RateSearch { rate_held: held, rate_failed: failed, steps, ..RateSearch::default() }
    }

    #[test]
    fn a_rate_is_found_if_the_true_one_lies_in_the_interval() {
        let scenario = limited().load.scenario("127.0.0.1:1").unwrap();
        let is_found = |held, failed| is_around(&found(held, failed), &scenario, CAPACITY);
        assert!(is_found(390.0, Some(410.0)) && is_found(400.0, Some(440.0)));
        assert!(is_found(380.0, Some(400.0)));
        for (held, failed) in
            [(1.0, Some(400.0)), (480.0, Some(500.0)), (300.0, Some(320.0)), (390.0, None)]
        {
            assert!(!is_found(held, failed), "{held} to {failed:?}");
        }
    }

    /// How far below the limit a search ends is up to the machine, whose stumbles look like those
    /// of a broker. Begun above the limit, it finds nothing, and looks for nothing below.
    #[test]
    fn a_broker_with_a_limit_is_not_found_to_hold_more() {
        let mut case = limited();
        case.load.search_from = Some(CAPACITY * 2);
        let (scenario, results) = case.run().unwrap();
        let found = results.rate_search.as_ref().unwrap();
        assert_eq!((found.rate_held, found.rate_failed), (0.0, Some(800.0)), "{found:#?}");
        assert!(found.steps.iter().all(|step| step.rate == 800.0), "{found:#?}");
        assert!(!found.limited_by_tool, "{found:#?}");
        assert!(!case.sign.is_in(&scenario, &results).0 && !results.validity.valid);
    }
}
