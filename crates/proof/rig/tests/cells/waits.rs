//! What waits in a shard for another cell, and what becomes of it: each kind of [`Waits`] with each
//! fate of that cell.

use broker::cells::gateway::GatewayFlaw;
use broker::{Settings, Waits};

use crate::stage::{BACK, OPERATOR, Stage};

/// What becomes of cell 1 while somebody waits for it.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It answers.
    Answers,
    /// It has a new owner before anybody has heard of the end of the one before.
    NewOwner,
    /// It has none for a while, and everybody knows it.
    OwnerLater,
    /// It has none.
    NoOwner,
}

/// All of them, in the order of [`Wait::gets`].
const FATES: [Fate; 4] = [Fate::Answers, Fate::NewOwner, Fate::OwnerLater, Fate::NoOwner];

/// Somebody in cell 0 waits for cell 1.
struct Wait {
    name: &'static str,
    /// Nothing arrives from cell 1 any more when this is called.
    begins: fn(&mut Stage),
    /// Which of them there is one of.
    kind: fn(&Waits) -> usize,
    who: &'static str,
    /// What they are sent, by the fate of cell 1.
    gets: [&'static [&'static str]; 4],
    /// What waits after all if no owner comes.
    waits_on: bool,
}

impl Fate {
    fn befalls(self, stage: &mut Stage) {
        match self {
            Self::Answers => {}
            Self::NewOwner => stage.take_over(1),
            Self::OwnerLater => {
                stage.lose(1);
                stage.pass_secs(5);
                stage.take_over(1);
            }
            Self::NoOwner => {
                stage.lose(1);
                stage.pass_secs(31);
            }
        }
        stage.release(BACK);
    }
}

impl Wait {
    /// With each fate.
    fn ends_as_expected(&self, settings: &Settings) {
        FATES.into_iter().for_each(|fate| self.ends_with(fate, Stage::new(settings, None)));
    }

    fn ends_with(&self, fate: Fate, mut stage: Stage) {
        prepare(&mut stage);
        (self.begins)(&mut stage);
        assert_eq!(stage.waits(0, self.kind), 1, "{}: {fate:?}", self.name);
        fate.befalls(&mut stage);
        let expected = self.gets[fate as usize].iter().map(|text| stage.placed(text));
        let expected: Vec<String> = expected.collect();
        assert_eq!(stage.texts(self.who), expected, "{}: {fate:?}", self.name);
        let still = usize::from(self.waits_on && matches!(fate, Fate::NoOwner));
        assert_eq!(stage.waits(0, self.kind), still, "{}: {fate:?}", self.name);
        if still == 0 {
            stage.is_over();
        }
    }
}

/// Cell 1 keeps what is published on `t`, and has a retained message. Nothing arrives from it any
/// more.
fn prepare(stage: &mut Stage) {
    stage.leaves("subscriber@1", "t", 2);
    stage.sends("other@1", "publish r@1 kept retain qos1 id1");
    stage.gets("other@1", ["puback 1"]);
    stage.keeps("kept@0");
    stage.opens_v311("old@0");
    stage.gets("clean@0", []);
    stage.hold(BACK);
}

const CLOSED: &[&str] = &["disconnect server_shutting_down", "closed"];

const PUBLISHERS: [Wait; 7] = [
    Wait {
        name: "QoS 1 of MQTT 5",
        begins: |stage| stage.sends("clean@0", "publish t 1 qos1 id5"),
        kind: |waits| waits.acknowledgements,
        who: "clean@0",
        gets: [&["puback 5"], &["puback 5"], &["puback 5"], &["puback 5 quota_exceeded"]],
        waits_on: false,
    },
    Wait {
        name: "QoS 1 of MQTT 3.1.1",
        begins: |stage| stage.sends("old@0", "publish t 1 qos1 id5"),
        kind: |waits| waits.acknowledgements,
        who: "old@0",
        gets: [&["puback 5"], &["puback 5"], &["puback 5"], &["closed"]],
        waits_on: false,
    },
    Wait {
        name: "a message to be retained",
        begins: |stage| stage.sends("clean@0", "publish r@1 new retain qos1 id5"),
        kind: |waits| waits.acknowledgements,
        who: "clean@0",
        gets: [&["puback 5"], &["puback 5"], &["puback 5"], &["puback 5 quota_exceeded"]],
        waits_on: false,
    },
    Wait {
        name: "QoS 2 that was taken on",
        begins: |stage| stage.sends("kept@0", "publish t 1 qos2 id5"),
        kind: |waits| waits.handovers,
        who: "kept@0",
        gets: [&["pubrec 5"], &["pubrec 5"], &["pubrec 5"], &[]],
        waits_on: true,
    },
    Wait {
        name: "QoS 2 that the lost owner may have delivered",
        begins: |stage| stage.sends("clean@0", "publish t 1 qos2 id5"),
        kind: |waits| waits.acknowledgements,
        who: "clean@0",
        gets: [&["pubrec 5"], CLOSED, CLOSED, CLOSED],
        waits_on: false,
    },
    Wait {
        name: "QoS 1 of an operator",
        begins: |stage| stage.publishes_as_operator("t", 1),
        kind: |waits| waits.publications,
        who: OPERATOR,
        gets: [
            &["published success"],
            &["published success"],
            &["published success"],
            &["published quota_exceeded"],
        ],
        waits_on: false,
    },
    Wait {
        name: "QoS 2 of an operator",
        begins: |stage| stage.publishes_as_operator("t", 2),
        kind: |waits| waits.publications,
        who: OPERATOR,
        gets: [
            &["published success"],
            &["published server_shutting_down"],
            &["published server_shutting_down"],
            &["published server_shutting_down"],
        ],
        waits_on: false,
    },
];

#[test]
fn publishers_wait_for_another_cell() {
    let settings = Settings::default();
    PUBLISHERS.iter().for_each(|wait| wait.ends_as_expected(&settings));
}

const PAGE: &[&str] = &["suback 1: 0", "publish r@1 kept retain"];

const SUBSCRIBERS: [Wait; 2] = [
    Wait {
        name: "a SUBACK",
        // Its retained message is in its own cell.
        begins: |stage| stage.sends("clean@0", "subscribe own@0 qos1"),
        kind: |waits| waits.subacks,
        who: "clean@0",
        gets: [&["suback 1: 1"], &["suback 1: 1"], &["suback 1: 1"], &["suback 1: 1"]],
        waits_on: false,
    },
    Wait {
        name: "a page of retained messages",
        begins: |stage| stage.asks_pages("clean@0", "subscribe r@1 qos0"),
        kind: |waits| waits.pages,
        who: "clean@0",
        gets: [PAGE, PAGE, PAGE, &["suback 1: 0"]],
        waits_on: true,
    },
];

#[test]
fn subscribers_wait_for_another_cell() {
    let settings = Settings::default();
    SUBSCRIBERS.iter().for_each(|wait| wait.ends_as_expected(&settings));
}

/// So little that a few messages fill the window to the other cell.
fn narrow() -> Settings {
    Settings { mail_bytes_max: 4_000, ..Settings::default() }
}

const WINDOW: Wait = Wait {
    name: "a publisher before a full window",
    begins: |stage| {
        let packet = format!("publish t {}", "x*100");
        (0..50).for_each(|_| stage.posts("clean@0", &packet));
        stage.sends("clean@0", "pingreq");
        stage.gets("clean@0", []);
    },
    kind: |waits| waits.windows,
    who: "clean@0",
    gets: [&["pingresp"]; 4],
    waits_on: false,
};

#[test]
fn publishers_wait_for_the_window_to_another_cell() {
    WINDOW.ends_as_expected(&narrow());
}

/// No kept session is taken on, so its QoS 2 publish is awaited after its connection.
fn rejecting() -> Settings {
    Settings { rejects: true, ..Settings::default() }
}

const ORPHAN: Wait = Wait {
    name: "a publish whose connection has ended",
    begins: |stage| {
        stage.sends("kept@0", "publish t 1 qos2 id5");
        stage.cuts("kept@0");
    },
    kind: |waits| waits.orphans,
    who: "other@0",
    gets: [&[]; 4],
    waits_on: false,
};

#[test]
fn publishes_wait_for_another_cell_after_their_connection() {
    ORPHAN.ends_as_expected(&rejecting());
}

/// Each kind that is asked again.
#[test]
fn what_is_not_asked_again_is_noticed() {
    let of = |flaw, wait: &Wait, settings: &Settings| {
        let noticed = std::panic::catch_unwind(|| {
            wait.ends_with(Fate::NewOwner, Stage::new(settings, Some(flaw)));
        });
        assert!(noticed.is_err(), "{flaw:?} is not noticed by {}", wait.name);
    };
    let usual = Settings::default();
    PUBLISHERS[..4].iter().for_each(|wait| of(GatewayFlaw::ForgetsMessages, wait, &usual));
    PUBLISHERS[4..5].iter().for_each(|wait| of(GatewayFlaw::RepeatsExact, wait, &usual));
    of(GatewayFlaw::KeepsBarriers, &SUBSCRIBERS[0], &usual);
    of(GatewayFlaw::ForgetsPages, &SUBSCRIBERS[1], &usual);
    of(GatewayFlaw::ForgetsGrants, &WINDOW, &narrow());
}
