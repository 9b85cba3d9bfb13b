//! Streams and rules: what they store and deliver, and what operators change of rules.

use std::time::Duration;

use base::moment;
use routing::definitions::{Kind, StreamDurability, WhenFull};
use routing::{Destination, Outcome as RecordOutcome};
use streams::{Position, Seek};
use tokio::sync::oneshot;
use web::axum::http::StatusCode;

use super::call::Call;
use super::params::{CURSOR, LIMIT, Param, WITHIN_ANY, text};
use super::problem::Problem;
use super::route::{GET, Method, Outcome, Role, Route};
use super::schema::{Described, Rows, record};
use super::tenants::Visible;
use super::{Api, json, scopes};
use crate::run::{
    NoAnswer, OperateError, Owner, RoutingFigures, RuleFigures, RuleOrder, StreamFigures,
    StreamsHandle,
};

record! {
    /// A stream, in which the broker stores messages for rules.
    Stream {
        /// Its name.
        name: String,
        /// The namespace whose messages it stores.
        namespace: String,
        /// Topics that it stores. Empty: it stores dead letters only.
        filters: Vec<String>,
        /// When a publisher gets its acknowledgement: the operating system has the message (disk),
        /// or it outlives a loss of power (fsync).
        durability: String,
        /// The policy at a limit: drop_oldest deletes the oldest file, reject refuses publishes.
        when_full: String,
        /// The greatest age of a message; null: no limit.
        age_max_secs: Option<u64>,
        /// The limit of `file_bytes`; null: none.
        bytes_max: Option<u64>,
        /// The limit of stored messages; null: none.
        messages_max: Option<u64>,
        /// Messages that it has ever stored.
        stored_messages: u64,
        /// Messages in its files.
        file_messages: u64,
        /// Bytes of its files.
        file_bytes: u64,
        /// Messages that are in the durable log and in no file yet.
        log_messages: u64,
        /// Rules that read it.
        rules: u64,
        /// It refuses messages at a limit.
        full: bool,
        /// Why its files cannot be written; null: they can.
        write_fault: Option<String>,
    }
}

record! {
    /// A rule, which sends messages of a stream to a target.
    Rule {
        /// Its name.
        name: String,
        /// The namespace of its stream.
        namespace: String,
        /// The stream that it reads.
        stream: String,
        /// Topics that it sends.
        filter: String,
        /// The form of its events.
        form: String,
        /// The name of its target.
        target: String,
        /// The kind of the target.
        target_kind: String,
        /// The topic of Kafka; null: the target is not Kafka.
        target_topic: Option<String>,
        /// The stream of messages that could not be delivered; null: they are discarded.
        dead_letter: Option<String>,
        /// Its definition has it enabled.
        enabled: bool,
        /// An operator has paused it.
        paused: bool,
        /// The state in one word.
        state: String,
        /// Why it waits; null: it does not.
        reason: Option<String>,
        /// When it tries again; null: it does not wait for a time.
        until: Option<String>,
        /// The number of the present run. A seek begins another one.
        run: u64,
        /// Where it continues after a start. `POST /rule/seek` accepts it.
        position: String,
        /// Messages of its stream without an outcome.
        lag_messages: u64,
        /// Age of the oldest of them; null: there is none, or it was not read yet.
        lag_seconds: Option<f64>,
        /// Seconds since the last outcome, while there are messages; null: there are none.
        stalled_secs: Option<u64>,
        /// Messages of this run.
        sum: RuleSum,
        /// Counts since the start of the broker.
        counters: RuleCounters,
        /// The last answer of the target that was not a success; null: there was none.
        last_error: Option<String>,
    }
}

record! {
    /// The messages that the stream has stored since the begin of the run: `stored` is the sum of
    /// all other fields.
    RuleSum {
        /// Messages of the stream since the begin of the run.
        stored: u64,
        /// The filter does not match.
        not_matched: u64,
        /// A condition does not hold.
        skipped_condition: u64,
        /// The message had expired.
        skipped_expired: u64,
        /// The target has acknowledged it.
        delivered: u64,
        /// It is in the dead-letter stream.
        dead_lettered: u64,
        /// It could not be delivered, and there is no dead-letter stream.
        given_up: u64,
        /// A limit of the stream has deleted it ahead of delivery.
        dropped_retention: u64,
        /// A file of the stream cannot be read there.
        dropped_damaged: u64,
        /// It is sent and not answered, or is retried.
        in_flight: u64,
        /// The rule has not dealt with it yet.
        pending: u64,
    }
}

record! {
    /// Counts of a rule since the start of the broker, over all runs.
    RuleCounters {
        /// Messages whose topic does not match.
        not_matched: u64,
        /// Messages for which a condition does not hold.
        skipped_condition: u64,
        /// Messages that had expired.
        skipped_expired: u64,
        /// Messages that the target has acknowledged.
        delivered: u64,
        /// Messages that went to the dead-letter stream.
        dead_lettered: u64,
        /// Messages that were discarded after the last attempt.
        given_up: u64,
        /// Messages that a limit of the stream has deleted ahead of delivery.
        dropped_retention: u64,
        /// Messages in damaged files.
        dropped_damaged: u64,
        /// Batches that were sent.
        batches: u64,
        /// Batches that the target did not accept as a whole.
        failed_batches: u64,
        /// Messages in batches, each retry included.
        sent: u64,
    }
}

record! {
    /// Where a rule goes on.
    SeekTo {
        /// `beginning`, `end`, a time such as `2030-12-31T23:59:59Z`, or a `position` of a rule.
        to: String,
    }
}

/// What can be asked of streams and rules.
pub(super) const ROUTES: &[Route] = &[
    Route {
        path: "/streams",
        takes_tenants: true,
        about: "Lists the streams by name, as of the last second.",
        params: &[WITHIN_ANY, LIMIT, CURSOR],
        answer: Some(Rows::<Stream>::schema),
        run: |api, call| Box::pin(async move { list_streams(&api, &call) }),
        ..GET
    },
    Route {
        path: "/stream",
        takes_tenants: true,
        segment_path: Some("/streams/{name}"),
        about: "Shows a stream.",
        params: &[STREAM],
        answer: Some(Stream::schema),
        run: |api, call| Box::pin(async move { show_stream(&api, &call) }),
        ..GET
    },
    Route {
        path: "/rules",
        takes_tenants: true,
        about: "Lists the rules by name, as of the last second.",
        params: &[WITHIN_ANY, LIMIT, CURSOR],
        answer: Some(Rows::<Rule>::schema),
        run: |api, call| Box::pin(async move { list_rules(&api, &call) }),
        ..GET
    },
    Route {
        path: "/rule",
        takes_tenants: true,
        segment_path: Some("/rules/{name}"),
        about: "Shows a rule.",
        params: &[RULE],
        answer: Some(Rule::schema),
        run: |api, call| Box::pin(async move { show_rule(&api, &call) }),
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/rule/pause",
        takes_tenants: true,
        segment_path: Some("/rules/{name}/pause"),
        role: Role::Operator,
        about: "Pauses a rule: it sends nothing more, also after a restart, until it is resumed. \
                Its stream stores messages, and its limits delete them.",
        params: &[RULE],
        answer: Some(Rule::schema),
        run: |api, call| Box::pin(async move { operate(&api, &call, RuleOrder::Pause).await }),
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/rule/resume",
        takes_tenants: true,
        segment_path: Some("/rules/{name}/resume"),
        role: Role::Operator,
        about: "Resumes a rule that was paused.",
        params: &[RULE],
        answer: Some(Rule::schema),
        run: |api, call| Box::pin(async move { operate(&api, &call, RuleOrder::Resume).await }),
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/rule/seek",
        takes_tenants: true,
        segment_path: Some("/rules/{name}/seek"),
        role: Role::Operator,
        about: "Moves a rule to another position of its stream, and begins another run. Messages \
                from there are sent, also those that were delivered before.",
        params: &[RULE],
        body: Some(SeekTo::schema),
        answer: Some(Rule::schema),
        run: |api, call| Box::pin(async move { seek(&api, &call).await }),
        ..GET
    },
];

const STREAM: Param = Param { is_required: true, ..text("name", "The name of a stream.") };
const RULE: Param = Param { is_required: true, ..text("name", "The name of a rule.") };

/// How long the owner of streams may take for an answer: it may wait for the disk.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

fn list_streams(api: &Api, call: &Call) -> Outcome {
    let all = figures(api, call)?.streams.iter().map(stream).collect();
    page(api, call, all, |own: &Stream| (&own.name, &own.namespace))
}

fn list_rules(api: &Api, call: &Call) -> Outcome {
    let all = figures(api, call)?.rules.iter().map(|own| rule(api, own)).collect();
    page(api, call, all, |own: &Rule| (&own.name, &own.namespace))
}

/// The rows of a namespace behind the cursor, which is the name of the last row before.
fn page<T: serde::Serialize>(
    api: &Api,
    call: &Call,
    all: Vec<T>,
    of: impl Fn(&T) -> (&String, &String),
) -> Outcome {
    check_namespace(api, call)?;
    let (namespace, after) = (call.text(scopes::PARAM), call.text(CURSOR.name));
    let wanted = |own: &T| {
        let (name, own) = of(own);
        namespace.is_none_or(|namespace| own == namespace) && after.is_none_or(|it| **name > *it)
    };
    let mut items: Vec<T> = all.into_iter().filter(wanted).take(call.limit() + 1).collect();
    let has_more = items.len() > call.limit();
    items.truncate(call.limit());
    let cursor = items.last().filter(|_| has_more).map(|own| of(own).0.clone());
    json(&Rows { items, cursor })
}

fn show_stream(api: &Api, call: &Call) -> Outcome {
    let name = call.needed("name");
    let all = figures(api, call)?;
    let found = all.streams.iter().find(|own| own.spec.name == name);
    json(&stream(found.ok_or_else(|| missing(api, "stream", name))?))
}

fn show_rule(api: &Api, call: &Call) -> Outcome {
    let name = call.needed("name");
    let all = figures(api, call)?;
    let found = all.rules.iter().find(|own| own.name() == name);
    json(&rule(api, found.ok_or_else(|| missing(api, "rule", name))?))
}

async fn seek(api: &Api, call: &Call) -> Outcome {
    let SeekTo { to } = call.body()?;
    let clock = api.facts.clock;
    let to = read_seek(&to, clock.now_ms(), clock.wall_ms()).ok_or_else(|| {
        let detail = "must be beginning, end, a time, or a position of the rule";
        let fix = "use a time such as 2030-12-31T23:59:59Z; GET /rule shows the position";
        Problem::bad("body, to", detail).fix(fix)
    })?;
    operate(api, call, RuleOrder::Seek(to)).await
}

/// Streams know broker time only.
fn read_seek(to: &str, now_ms: u64, wall_ms: u64) -> Option<Seek> {
    match to {
        "beginning" => Some(Seek::Beginning),
        "end" => Some(Seek::End),
        position if position.contains('.') && !position.contains(':') => {
            Position::parse(position).map(Seek::Position)
        }
        time if time.contains(':') => {
            let at_ms = moment::secs_of(time)?.saturating_mul(1000);
            Some(Seek::Time((now_ms + at_ms).saturating_sub(wall_ms)))
        }
        _ => None,
    }
}

/// Rules of suspended namespaces send nothing from now on, and those of others do again.
pub(super) async fn follow_namespaces(api: &Api) -> Result<(), Problem> {
    // A start that is under way looks at the namespaces by itself.
    let Some(handle) = api.facts.streams.get() else { return Ok(()) };
    ask(handle, Owner::follow_namespaces).await
}

/// Has the owner of streams answer a question.
pub(super) async fn ask<T: Send + 'static>(
    handle: &StreamsHandle,
    question: impl FnOnce(&mut Owner) -> T + Send + 'static,
) -> Result<T, Problem> {
    let (answer, answered) = oneshot::channel();
    handle.inbox.call(move |owner| {
        // Who asked may have given up.
        let _ = answer.send(question(owner));
    });
    receive(answered).await
}

/// Has the owner of streams change definitions, and waits until they are in force.
pub(super) async fn change_definitions<E: Send + 'static>(
    handle: &StreamsHandle,
    change: impl FnOnce(&mut Owner) -> Result<(), E> + Send + 'static,
) -> Result<Result<(), E>, Problem> {
    let (answer, answered) = oneshot::channel();
    handle.inbox.call(move |owner| {
        let done = change(owner);
        // Who asked may have given up.
        owner.answer_in_force(done, move |done| drop(answer.send(done)));
    });
    receive(answered).await
}

async fn receive<T>(answered: oneshot::Receiver<T>) -> Result<T, Problem> {
    match tokio::time::timeout(ANSWER_TIME_MAX, answered).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(_)) => Err(NoAnswer::Absent.into()),
        Err(_) => Err(NoAnswer::Late.into()),
    }
}

async fn operate(api: &Api, call: &Call, order: RuleOrder) -> Outcome {
    let name = call.needed("name").to_owned();
    let handle = open(api)?.ok_or_else(|| missing(api, "rule", &name))?;
    let (answer, answered) = oneshot::channel();
    let (rule, namespace) = (name.clone(), call.tenant().map(str::to_owned));
    // Who asked may have given up.
    let answer = Box::new(move |done| drop(answer.send(done)));
    handle.inbox.call(move |owner| owner.operate(&rule, &order, namespace.as_deref(), answer));
    receive(answered).await?.map_err(|error| refused(api, &name, error))?;
    show_rule(api, call)
}

fn refused(api: &Api, name: &str, error: OperateError) -> Problem {
    match error {
        OperateError::UnknownRule => missing(api, "rule", name),
        OperateError::Disabled => {
            let detail = format!("the rule '{name}' is disabled by its definition");
            let fix = "set enabled = true in its definition";
            Problem::new(StatusCode::CONFLICT, detail).fix(fix)
        }
        OperateError::Unwritten(error) => {
            let detail = format!("cannot write to the data directory: {error}");
            let fix = "nothing was changed: check the disk and try again";
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail).fix(fix)
        }
        OperateError::Stopping => NoAnswer::Absent.into(),
    }
}

/// None: no streams are configured.
///
/// # Errors
///
/// They are not open yet.
pub(super) fn open(api: &Api) -> Result<Option<&StreamsHandle>, Problem> {
    match api.facts.streams.get() {
        Some(handle) => Ok(Some(handle)),
        None if api.facts.config.routing.is_none() => Ok(None),
        None => {
            let detail = "streams are not open yet: the broker is starting";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).fix("retry in a second"))
        }
    }
}

/// What the caller may see.
fn figures(api: &Api, call: &Call) -> Result<RoutingFigures, Problem> {
    let Some(handle) = open(api)? else { return Ok(RoutingFigures::default()) };
    let mut all = handle.board.figures();
    let defined = handle.board.defined();
    if let Some(names) = Visible::to(api, call).names(&defined) {
        all.streams.retain(|own| names.contains(&(Kind::Stream, &*own.spec.name)));
        all.rules.retain(|own| names.contains(&(Kind::Rule, own.name())));
    }
    Ok(all)
}

/// To a caller who belongs to a namespace there is no other.
fn check_namespace(api: &Api, call: &Call) -> Result<(), Problem> {
    match (call.tenant(), call.text(scopes::PARAM)) {
        (Some(own), Some(name)) if name != own => Err(Problem::missing("namespace", name)),
        _ => scopes::of_list(api, call).map(drop),
    }
}

pub(super) fn missing(api: &Api, what: &str, name: &str) -> Problem {
    let fix = match &api.facts.config.routing {
        Some(_) => format!("GET /{what}s lists all"),
        None => "set routing.file in the configuration, and restart".to_owned(),
    };
    Problem::missing(what, name).fix(fix)
}

fn stream(own: &StreamFigures) -> Stream {
    let StreamFigures { spec, view } = own;
    Stream {
        name: spec.name.clone(),
        namespace: spec.namespace.clone(),
        filters: spec.filters.clone(),
        durability: match spec.durability {
            StreamDurability::Disk => "disk".to_owned(),
            StreamDurability::Fsync => "fsync".to_owned(),
        },
        when_full: match spec.full {
            WhenFull::DropOldest => "drop_oldest".to_owned(),
            WhenFull::Reject => "reject".to_owned(),
        },
        age_max_secs: spec.age_max_secs,
        bytes_max: spec.bytes_max,
        messages_max: spec.messages_max,
        stored_messages: view.stored,
        file_messages: view.records,
        file_bytes: view.bytes,
        log_messages: view.unmoved,
        rules: view.consumers,
        full: view.is_full,
        write_fault: view.fault.clone(),
    }
}

fn rule(api: &Api, own: &RuleFigures) -> Rule {
    let RuleFigures { facts, view, is_paused, stalled_since_ms } = own;
    let spec = &facts.spec;
    let (now_ms, wall_ms) = (api.facts.clock.now_ms(), api.facts.clock.wall_ms());
    let wall_of = |at_ms: u64| moment::text_of((wall_ms + at_ms).saturating_sub(now_ms) / 1000);
    let target = spec.rule.target();
    let is_enabled = spec.rule.is_enabled();
    let reason = if is_enabled { view.state.reason() } else { DISABLED.to_owned() };
    Rule {
        name: own.name().to_owned(),
        namespace: facts.namespace.clone(),
        stream: spec.stream.clone(),
        filter: spec.rule.filter().to_owned(),
        form: spec.rule.form().word().to_owned(),
        target: target.map(|target| target.name.clone()).unwrap_or_default(),
        target_kind: target.map_or("", |target| target.destination.word()).to_owned(),
        target_topic: target.and_then(|target| match &target.destination {
            Destination::Kafka { topic, .. } => Some(topic.clone()),
            Destination::Http { .. } => None,
        }),
        dead_letter: spec.dead_letter.clone(),
        enabled: is_enabled,
        paused: *is_paused,
        state: view.state.name().to_owned(),
        reason: Some(reason).filter(|reason| !reason.is_empty()),
        until: view.state.until_ms().map(wall_of),
        run: view.run,
        position: own.position(),
        lag_messages: view.sum.lag(),
        lag_seconds: view.lag_ms.map(|lag_ms| lag_ms as f64 / 1000.0),
        stalled_secs: stalled_since_ms.map(|at_ms| now_ms.saturating_sub(at_ms) / 1000),
        sum: sum_of(own),
        counters: counters_of(own),
        last_error: view.last_error.clone(),
    }
}

const DISABLED: &str = "disabled by its definition";

fn sum_of(own: &RuleFigures) -> RuleSum {
    let sum = &own.view.sum;
    RuleSum {
        stored: sum.stored,
        not_matched: sum.total(RecordOutcome::NotMatched),
        skipped_condition: sum.total(RecordOutcome::SkippedByCondition),
        skipped_expired: sum.total(RecordOutcome::SkippedExpired),
        delivered: sum.total(RecordOutcome::Delivered),
        dead_lettered: sum.total(RecordOutcome::DeadLettered),
        given_up: sum.total(RecordOutcome::GivenUp),
        dropped_retention: sum.total(RecordOutcome::DroppedByRetention),
        dropped_damaged: sum.total(RecordOutcome::DroppedDamaged),
        in_flight: sum.in_flight,
        pending: sum.pending,
    }
}

fn counters_of(own: &RuleFigures) -> RuleCounters {
    let counters = &own.view.counters;
    RuleCounters {
        not_matched: counters.total(RecordOutcome::NotMatched),
        skipped_condition: counters.total(RecordOutcome::SkippedByCondition),
        skipped_expired: counters.total(RecordOutcome::SkippedExpired),
        delivered: counters.total(RecordOutcome::Delivered),
        dead_lettered: counters.total(RecordOutcome::DeadLettered),
        given_up: counters.total(RecordOutcome::GivenUp),
        dropped_retention: counters.total(RecordOutcome::DroppedByRetention),
        dropped_damaged: counters.total(RecordOutcome::DroppedDamaged),
        batches: counters.batches,
        failed_batches: counters.failed_batches,
        sent: counters.sent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_is_read_as_a_word_a_time_or_a_position() {
        let read = |text: &str| read_seek(text, 5_000, 1_000_000_000_000);
        assert_eq!(read("beginning"), Some(Seek::Beginning));
        assert_eq!(read("end"), Some(Seek::End));
        assert_eq!(read("0.17-1.3"), Position::parse("0.17-1.3").map(Seek::Position));
        // 2001-09-09T01:46:40Z is the present.
        assert_eq!(read("2001-09-09T01:46:38Z"), Some(Seek::Time(3_000)));
        assert_eq!(read("2001-09-09T01:46:38.5Z"), Some(Seek::Time(3_000)));
        assert_eq!(read("2001-09-09T03:46:38+02:00"), Some(Seek::Time(3_000)));
        assert_eq!(read("1990-01-01T00:00:00Z"), Some(Seek::Time(0)), "older than the broker");
        for wrong in ["", "start", "17", "0.", "0.1-", "yesterday:", "1.2:3"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
