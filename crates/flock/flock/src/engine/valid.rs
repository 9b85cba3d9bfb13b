//! May the figures be believed? Was the plan carried out, and was the tool not the bottleneck?

use super::conductor::Conductor;
use super::contention;
use super::judge::Part;
use flock_measure::text::{count, micros};
use flock_measure::{
    AgentInfo, ClientLatency, FaultRecord, LatencyHistogram, LatencyKind, Outcome, Totals, Validity,
};

/// What was planned and not done comes first; then the thresholds of the catalogue's method: 99 %
/// of the messages at most 1 ms late, and no load thread over 80 % busy.
pub(super) fn validity(conductor: &Conductor<'_>, part: &Part) -> Validity {
    let mut reasons = shortfalls(conductor);
    reasons.extend(conductor.reasons.iter().cloned());
    reasons.extend(conductor.sinks.reasons());
    // What may be the cause of the rest.
    let contention = contention::of(conductor);
    reasons.extend(contention::reasons(&contention));
    reasons.extend(no_latency_reason(conductor, part));
    let mut lateness = LatencyHistogram::new();
    for one in part.latencies.iter().filter(|one| one.kind == LatencyKind::Lateness) {
        lateness.merge(&one.histogram);
    }
    let late_us = lateness.micros_at(99.0);
    if late_us > LATENESS_MAX_US {
        reasons.push(format!(
            "1 % of the messages were sent more than {} late: flock or its machine is too slow",
            micros(late_us as f64)
        ));
    }
    reasons.extend(receiving_reason(part));
    let mut busy = conductor.thread_cpu.clone();
    busy.sort_by(f64::total_cmp);
    // The median over the seconds: one busy second does not spoil a run.
    let cpu = busy.get(busy.len() / 2).copied().unwrap_or(0.0);
    if cpu > THREAD_CPU_MAX_PERCENT {
        reasons.push(format!("the busiest load thread used {cpu:.0} % of a core"));
    }
    let agents = conductor.pool.agents();
    let clocks = clocks(&agents, &conductor.totals);
    reasons.extend(clocks.0);
    let elsewhere = machines_of(&agents);
    reasons.extend(elsewhere.0);
    Validity {
        valid: reasons.is_empty(),
        reasons,
        notes: [
            conductor.notes.clone(),
            sessions(&conductor.totals),
            clients(part),
            contention::notes(&contention),
            clocks.1,
            elsewhere.1,
        ]
        .concat(),
        contention,
        others_unknown: conductor.company.unknown.clone(),
        lateness: lateness.summary(),
        receive_lag: part.receive_lag.summary(),
        thread_cpu_percent_max: busy.last().copied().unwrap_or(0.0),
    }
}

/// A run that publishes to subscribers is made for their latencies. What only waits in the broker's
/// store for those who come later has none.
fn no_latency_reason(conductor: &Conductor<'_>, part: &Part) -> Option<String> {
    let totals = &conductor.totals;
    let aside = totals.received_retained + totals.wills_received;
    let live = totals.received_all().saturating_sub(aside);
    let is_owed = live > 0 || part.integrity.total().expected > 0;
    let stages = &conductor.plan.scenario.stages;
    let measured_any = stages.iter().any(|stage| stage.measured);
    let is_measured = stages
        .iter()
        .enumerate()
        .any(|(at, stage)| (stage.measured || !measured_any) && conductor.plan.publishes_in(at));
    let is_stored = conductor.plan.publishes.iter().all(|planned| planned.command.retain);
    let is_of_messages = |kind| {
        use LatencyKind::{EndToEnd, PublishAck, RoundTrip, Routed};
        matches!(kind, EndToEnd | Routed | PublishAck | RoundTrip)
    };
    let mut of_messages = part.latencies.iter().filter(|one| is_of_messages(one.kind));
    if totals.published_all() == 0
        || !(is_owed && is_measured)
        || is_stored
        || of_messages.any(|one| !one.histogram.is_empty())
    {
        return None;
    }
    let why = match conductor.plan.all_stamped {
        true => "no message arrived or was acknowledged",
        false => "payloads below 16 B have no stamp",
    };
    Some(format!("no message latency was measured: {why}"))
}

/// What brokers said of sessions that is no fault of theirs.
fn sessions(totals: &Totals) -> Vec<String> {
    let counts = [
        (totals.sessions_found, "connects found a session from before the run"),
        (totals.sessions_shortened, "connects got a shorter session expiry than asked for"),
    ];
    let told = counts.into_iter().filter(|(times, _)| *times > 0);
    told.map(|(times, what)| format!("{} {what}", count(times))).collect()
}

/// The client that is far slower than all, where there is one.
fn clients(part: &Part) -> Vec<String> {
    let all = |kind| {
        let mut all = LatencyHistogram::new();
        for one in part.latencies.iter().filter(|one| one.kind == kind) {
            all.merge(&one.histogram);
        }
        all
    };
    let (plain, routed) = (all(LatencyKind::EndToEnd), all(LatencyKind::Routed));
    let of = |one: &ClientLatency| if one.routed { &routed } else { &plain };
    let mut far = part.worst_clients.iter().filter(|one| one.is_far_apart(of(one)));
    let Some(first) = far.next() else { return Vec::new() };
    let others = match far.count() {
        0 => String::new(),
        others => format!(" ({others} others of the slowest ten are over 5 times as well)"),
    };
    vec![format!(
        "the median latency of client {} is {}, {:.0} times that of all clients{others}",
        first.client,
        micros(first.p50_us as f64),
        first.times(of(first))
    )]
}

/// Whether the tool came so late to what had arrived that a good part of the latencies is its own.
fn receiving_reason(part: &Part) -> Option<String> {
    if part.receive_lag.count() < RECEIVE_LAG_SAMPLES_MIN {
        return None;
    }
    let lag_us = part.receive_lag.micros_at(99.0);
    let mut latency = LatencyHistogram::new();
    for one in part.latencies.iter().filter(|one| one.kind == LatencyKind::EndToEnd) {
        latency.merge(&one.histogram);
    }
    let is_much = lag_us as f64 > latency.micros_at(99.0) as f64 * RECEIVE_LAG_SHARE_MAX;
    (lag_us > LATENESS_MAX_US && is_much).then(|| {
        format!(
            "1 % of the messages waited up to {} for flock to read them, a large part of the \
                 latency",
            micros(lag_us as f64)
        )
    })
}

/// The same of the agents' machines as of this one: reasons and notes.
fn machines_of(agents: &[AgentInfo]) -> (Vec<String>, Vec<String>) {
    let (mut reasons, mut notes) = (Vec::new(), Vec::new());
    for agent in agents {
        let Some(contention) = &agent.contention else { continue };
        let told = |words: Vec<String>| {
            words.into_iter().map(|words| format!("agent {}: {words}", agent.address))
        };
        reasons.extend(told(contention::reasons(contention)));
        notes.extend(told(contention::notes(contention)));
    }
    (reasons, notes)
}

/// What clocks of several machines do to the latencies: reasons against them, and notes.
fn clocks(agents: &[AgentInfo], totals: &Totals) -> (Vec<String>, Vec<String>) {
    let (mut reasons, mut notes) = (Vec::new(), Vec::new());
    for agent in agents {
        let (drift, error) = (agent.clock_drift_us.abs(), agent.clock_drift_error_us);
        if drift <= error {
            continue;
        }
        let words = format!(
            "the clock of agent {} drifted by {} (error {}) during the run: latencies between \
                 machines are wrong by as much",
            agent.address,
            micros(drift),
            micros(error)
        );
        let is_much = drift - error > CLOCK_DRIFT_MAX_US;
        if is_much { reasons.push(words) } else { notes.push(words) }
    }
    let early = totals.received_early;
    if early > 0 {
        let words = format!(
            "{} of {} messages arrived ahead of their due time, by the clocks of two machines: \
                 their latency counts as 0",
            count(early),
            count(totals.received_all())
        );
        let is_much = early as f64 > totals.received_all() as f64 * EARLY_SHARE_MAX;
        if is_much { reasons.push(words) } else { notes.push(words) }
    }
    (reasons, notes)
}

/// What the plan asked for and did not come about, in words.
fn shortfalls(conductor: &Conductor<'_>) -> Vec<String> {
    let totals = &conductor.totals;
    let mut found = Vec::new();
    match &conductor.outcome {
        Outcome::Completed => {}
        Outcome::Interrupted(why) | Outcome::Failed(why) => found.push(why.clone()),
    }
    let lost = unplanned_losses(&conductor.lost_by_second, &conductor.faults);
    let failed = totals.connects_failed;
    let connects_max = conductor.plan.scenario.expect.connect_failures_max;
    // A run that only subscribes measures what others send.
    let publishes = conductor.plan.streams() > 0;
    let strangers = if publishes { totals.received_foreign_live } else { 0 };
    let counts = [
        ("connections lost without a fault", lost),
        ("connects failed", if failed > connects_max { failed } else { 0 }),
        ("subscriptions refused", totals.subscribes_failed),
        ("subscriptions granted a lower QoS than asked for", totals.subscribes_lowered),
        ("unsubscriptions refused", totals.unsubscribes_failed),
        ("messages of other runs received", strangers),
        ("clients that could not finish their steps", totals.programs_cut_short),
        ("`receive` steps without all messages", totals.receives_failed),
        ("messages refused by the broker", totals.publishes_refused - conductor.excused_refusals),
    ];
    let told = counts.iter().filter(|(_, times)| *times > 0);
    found.extend(told.map(|(what, times)| format!("{what}: {}", count(*times))));
    // Steps beyond the rate that holds are there to ask too much.
    let skipped = totals.publishes_skipped - conductor.excused_skips;
    if skipped > 0 {
        let (skipped, all) = (count(skipped), count(totals.publishes_scheduled));
        found.push(format!(
            "{skipped} of {all} messages were due and not sent: they count in latencies with \
                 their waiting time, a lower bound"
        ));
    }
    found
}

/// Connections that were lost when no fault of the scenario was at work. A broker that was killed,
/// stopped or paused has an excuse until it is back, and a little longer.
fn unplanned_losses(by_second: &[(u32, u64)], faults: &[FaultRecord]) -> u64 {
    let mut excused: Vec<(f64, f64)> = Vec::new();
    let mut down_since = None;
    for fault in faults {
        match fault.what.as_str() {
            "kill" | "stop" | "pause" => down_since = down_since.or(Some(fault.at_secs)),
            "restart" | "resume" => {
                let from = down_since.take().unwrap_or(fault.at_secs);
                excused.push((from, fault.at_secs + RECOVERY_SECS));
            }
            _ => {}
        }
    }
    excused.extend(down_since.map(|from| (from, f64::INFINITY)));
    // What is told of second `n` happened between `n - 1` and `n`.
    let is_excused = |at_secs: u32| {
        let at = f64::from(at_secs);
        excused.iter().any(|&(from, to)| at >= from && at - 1.0 <= to)
    };
    by_second.iter().filter(|(at_secs, _)| !is_excused(*at_secs)).map(|(_, lost)| lost).sum()
}

pub(super) const LATENESS_MAX_US: u64 = 1_000;
/// As much as the tool itself may be late.
const CLOCK_DRIFT_MAX_US: f64 = 1_000.0;
/// In fewer messages the 99th percentile is one turn of one thread.
const RECEIVE_LAG_SAMPLES_MIN: u64 = 1_000;
/// Of the 99th percentile of the latency.
const RECEIVE_LAG_SHARE_MAX: f64 = 0.25;
const EARLY_SHARE_MAX: f64 = 0.01;
pub(crate) const THREAD_CPU_MAX_PERCENT: f64 = 80.0;
/// After its return a broker may still be seen to break connections that it had before.
const RECOVERY_SECS: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tally::Measured;
    use flock_measure::Contention;

    fn fault(what: &str, at_secs: f64) -> FaultRecord {
        FaultRecord { what: what.to_owned(), at_secs, ..FaultRecord::default() }
    }

    #[test]
    fn a_tool_that_reads_late_is_told_apart_from_a_slow_broker() {
        let part = |lag_us: u64, latency_us: u64| {
            let mut part = Part::default();
            part.receive_lag.record_micros_n(lag_us, 1_000);
            let mut histogram = LatencyHistogram::new();
            histogram.record_micros_n(latency_us, 1_000);
            let kind = LatencyKind::EndToEnd;
            part.latencies.push(Measured { kind, qos: 1, histogram, unfinished: 0, missing: 0 });
            receiving_reason(&part)
        };
        assert!(part(5_000, 8_000).is_some_and(|words| words.contains("ms")));
        assert_eq!(part(5_000, 80_000), None, "most of it is the broker's");
        assert_eq!(part(800, 900), None);
        assert_eq!(receiving_reason(&Part::default()), None);
    }

    #[test]
    fn clocks_that_part_speak_against_latencies() {
        let agent = |drift: f64| AgentInfo {
            clock_drift_us: drift,
            clock_drift_error_us: 200.0,
            ..AgentInfo::default()
        };
        let early = |early: u64| Totals {
            received: [1_000, 0, 0],
            received_early: early,
            ..Totals::default()
        };
        let counts = |agents: &[AgentInfo], totals: &Totals| {
            let (reasons, notes) = clocks(agents, totals);
            (reasons.len(), notes.len())
        };
        assert_eq!(counts(&[agent(150.0)], &early(0)), (0, 0));
        assert_eq!(counts(&[agent(-900.0), agent(5.0)], &early(10)), (0, 2));
        assert_eq!(counts(&[agent(-1_900.0)], &early(11)), (2, 0));
        assert!(clocks(&[], &early(11)).0[0].contains("11 of 1,000 messages arrived ahead"));
    }

    #[test]
    fn what_an_agents_machine_did_is_told_with_its_name() {
        let contention = Contention {
            steal_percent: Some(9.0),
            busy_percent: Some(95.0),
            ..Contention::default()
        };
        let agent = AgentInfo {
            address: "there:3881".to_owned(),
            contention: Some(contention),
            ..AgentInfo::default()
        };
        let (reasons, notes) = machines_of(&[AgentInfo::default(), agent]);
        assert!(reasons[0].starts_with("agent there:3881: other virtual machines"), "{reasons:?}");
        assert_eq!((reasons.len(), notes.len()), (1, 1));
    }

    #[test]
    fn a_fault_excuses_the_losses_of_its_own_time() {
        let lost = [(3, 1), (21, 10), (22, 100), (40, 1_000)];
        assert_eq!(unplanned_losses(&lost, &[]), 1_111);
        let killed = [fault("kill", 20.3), fault("restart", 22.5)];
        assert_eq!(unplanned_losses(&lost, &killed), 1_001);
        assert_eq!(unplanned_losses(&lost, &killed[..1]), 1);
        assert_eq!(unplanned_losses(&lost, &[fault("cut", 20.3)]), 1_111);
    }
}
