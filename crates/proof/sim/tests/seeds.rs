//! Thousands of worlds, and proof that the oracle sees what it should.

use session::Overflow;
use sim::{Options, Report, Sabotage, run, run_many};

const SEEDS: u64 = 1200;

fn run_all(first: u64, count: u64, options: Options) -> Vec<Report> {
    let (reports, failures) = run_many(first, count, options, false);
    if let Some(failure) = failures.first() {
        panic!("{failure}");
    }
    reports
}

#[test]
fn every_world_keeps_its_promises() {
    let reports = run_all(0, SEEDS, Options::default());
    // Publishers have to wait for other shards, or the worlds prove less than they seem to.
    assert!(reports.iter().filter(|report| report.mail_waits > 0).count() as u64 > SEEDS / 10);
}

#[test]
fn overflow_is_never_silent() {
    for overflow in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Disconnect] {
        run_all(0, 100, Options { overflow: Some(overflow), ..Options::default() });
    }
}

#[test]
fn a_full_queue_refuses_the_publisher() {
    run_all(0, 300, Options { overflow: Some(Overflow::Reject), ..Options::default() });
}

#[test]
fn one_seed_is_one_world() {
    let plain = Options::default();
    let kinds = [
        plain,
        Options { hostile: true, ..plain },
        Options { policy: true, driven: true, ..plain },
        Options { driven: true, hostile: true, policy: true, ..Options::durable() },
        Options { driven: true, ..Options::cluster() },
    ];
    for options in kinds {
        let run = || run(7, options).expect("it keeps its promises");
        let (once, again) = (run(), run());
        // Of the turns alone there are hundreds.
        assert_eq!(format!("{once:?}"), format!("{again:?}"), "{options:?}");
        assert!(once.received > 0 && once.driven.turns > 100);
    }
}

/// What a server has at once: these worlds are not the sum of the others.
#[test]
fn kinds_go_together() {
    let driven = Options { driven: true, ..Options::default() };
    run_all(0, 100, Options { hostile: true, policy: true, ..driven });
    run_all(0, 100, Options { driven: true, ..Options::durable() });
    run_all(0, 50, Options { driven: true, hostile: true, policy: true, ..Options::durable() });
    run_all(0, 50, Options { driven: true, ..Options::cluster() });
}

#[test]
fn a_service_that_takes_its_time_breaks_no_promise() {
    let service = Options { service: true, ..Options::default() };
    run_all(0, 200, service);
    run_all(0, 100, Options { driven: true, ..service });
    run_all(0, 100, Options { service: true, driven: true, ..Options::durable() });
    let report = run(7, service).expect("it keeps its promises");
    assert!(report.answers > 100, "{report:?}");
}

#[test]
fn traces_break_no_promise() {
    let spans = Options { spans: true, driven: true, ..Options::default() };
    run_all(0, 200, spans);
    run_all(0, 100, Options { hostile: true, policy: true, ..spans });
    run_all(0, 100, Options { spans: true, driven: true, ..Options::durable() });
    run_all(0, 50, Options { spans: true, ..Options::cluster() });
}

#[test]
fn answers_that_come_again_break_no_promise() {
    let sabotage = Some(Sabotage::AnswerTwice);
    run_all(0, 300, Options { sabotage, ..Options::default() });
    let overflow = Some(Overflow::Reject);
    run_all(0, 300, Options { sabotage, overflow, ..Options::default() });
    run_all(0, 200, Options { sabotage, policy: true, ..Options::default() });
}

fn is_caught(sabotage: Sabotage) {
    let options = Options { sabotage: Some(sabotage), ..Options::default() };
    let caught = (0..200).find(|seed| run(*seed, options).is_err());
    assert!(caught.is_some(), "the oracle does not see {sabotage:?}");
}

#[test]
fn the_oracle_sees_lost_mail() {
    is_caught(Sabotage::LoseMail);
}

#[test]
fn the_oracle_sees_doubled_mail() {
    is_caught(Sabotage::DoubleMail);
}

#[test]
fn the_oracle_sees_reordered_mail() {
    is_caught(Sabotage::SwapMail);
}

#[test]
fn the_oracle_sees_a_publisher_that_is_never_read_on() {
    is_caught(Sabotage::LoseTaken);
}

#[test]
fn the_oracle_sees_a_suback_that_other_shards_have_not_heard_of() {
    is_caught(Sabotage::HearEarly);
}

#[test]
fn the_oracle_sees_a_session_that_goes_to_another_user() {
    is_caught(Sabotage::IgnoreOwner);
}

#[test]
fn the_oracle_sees_a_lost_session() {
    is_caught(Sabotage::LoseSession);
}

/// Worlds with clients that do their worst, with this planted bug.
fn is_caught_beside_the_hostile(sabotage: Sabotage) {
    let options = Options { sabotage: Some(sabotage), hostile: true, ..Options::default() };
    let caught = (0..400).find(|seed| run(*seed, options).is_err());
    assert!(caught.is_some(), "the oracle does not see {sabotage:?}");
}

#[test]
fn honest_clients_are_served_beside_hostile_ones() {
    run_all(0, 600, Options { hostile: true, ..Options::default() });
}

#[test]
fn the_oracle_sees_a_charge_that_is_not_given_back() {
    is_caught_beside_the_hostile(Sabotage::KeepCharge);
}

#[test]
fn the_oracle_sees_who_holds_most_and_is_spared() {
    is_caught_beside_the_hostile(Sabotage::SpareLargest);
}

#[test]
fn the_oracle_sees_that_others_pay_for_what_hostile_ones_hold() {
    is_caught_beside_the_hostile(Sabotage::RefuseAll);
}

#[test]
fn the_oracle_sees_namespaces_whose_users_share_by_themselves() {
    is_caught_beside_the_hostile(Sabotage::ForgetNamespaces);
}

#[test]
fn the_oracle_sees_work_without_a_budget() {
    is_caught_beside_the_hostile(Sabotage::IgnoreBudget);
}

#[test]
fn the_oracle_sees_publishers_that_wait_for_what_others_flood() {
    is_caught_beside_the_hostile(Sabotage::CouplePauses);
}

#[test]
fn the_oracle_sees_rules_that_are_lost() {
    is_caught_beside_the_hostile(Sabotage::OpenAccess);
}

#[test]
fn the_oracle_sees_connections_whose_end_is_not_seen() {
    is_caught_beside_the_hostile(Sabotage::ForgetBroken);
}

/// Worlds with rules that change, with this planted bug.
fn is_caught_by_rules(sabotage: Sabotage) {
    let options = Options { sabotage: Some(sabotage), policy: true, ..Options::default() };
    let caught = (0..200).find(|seed| run(*seed, options).is_err());
    assert!(caught.is_some(), "the oracle does not see {sabotage:?}");
}

#[test]
fn no_message_reaches_who_may_not_have_it() {
    run_all(0, 600, Options { policy: true, ..Options::default() });
    run_all(0, 200, Options { policy: true, hostile: true, ..Options::default() });
}

#[test]
fn the_oracle_sees_a_shard_that_keeps_old_rules() {
    is_caught_by_rules(Sabotage::KeepOldRules);
}

#[test]
fn the_oracle_sees_a_client_that_keeps_an_old_credential() {
    is_caught_by_rules(Sabotage::KeepOldPrincipal);
}

#[test]
fn the_oracle_sees_who_is_banned_and_not_cut() {
    is_caught_by_rules(Sabotage::KeepBanned);
}

#[test]
fn the_oracle_sees_clients_that_are_there_after_many_were_ended() {
    is_caught_by_rules(Sabotage::IgnoreSweeps);
}

#[test]
fn the_oracle_sees_a_namespace_that_is_there_after_it_was_closed_or_emptied() {
    let sabotage = Some(Sabotage::IgnoreSweeps);
    let options = Options { sabotage, hostile: true, ..Options::default() };
    for rule in ["is connected after an operator", "is empty, and has something"] {
        let is_seen = |seed| run(seed, options).is_err_and(|it| it.rule.contains(rule));
        assert!((0..200).any(is_seen), "the oracle does not see {sabotage:?}: {rule}");
    }
}

#[test]
fn the_oracle_sees_packets_that_operators_are_not_shown() {
    is_caught_by_rules(Sabotage::HideTraced);
}

#[test]
fn the_oracle_sees_spans_that_nobody_counts() {
    let options =
        Options { sabotage: Some(Sabotage::LoseSpans), spans: true, ..Options::default() };
    assert!((0..200).any(|seed| run(seed, options).is_err()));
}

#[test]
fn the_oracle_sees_a_session_that_is_there_after_it_was_purged() {
    is_caught_by_rules(Sabotage::ForgetPurge);
}

#[test]
fn the_oracle_sees_a_credential_that_does_not_end() {
    is_caught_by_rules(Sabotage::KeepCredentials);
}
