//! What a world is made of: settings, limits and clients, as its seed throws them.

use crate::client::{Habit, ModelClient, NEVER_SECS};
use crate::disks::Disks;
use crate::hostile::Mob;
use crate::oracle::{GROUP_KEEPER, Terms};
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::service::ask_for_everything;
use crate::world::Options;
use broker::{Durability, Limits, Settings, ShareStrategy, SpanSettings, TURN_UNITS, WhenFull};
use codec::{QoS, Version};
use session::{Overflow, QueueLimits};

pub(crate) fn new_settings(
    options: Options,
    random: &mut Random,
    crowd: &mut Random,
) -> (Settings, Limits) {
    let settings = Settings {
        share_strategy: pick(&STRATEGIES, random),
        rejects: options.overflow == Some(Overflow::Reject),
        // From less than a message to more than there is.
        mail_bytes_max: pick(&[50, 500, 5_000, 500_000], random),
        // Most have more than anybody asks for.
        turn_units: pick(&[1, 3, 30, TURN_UNITS, TURN_UNITS, TURN_UNITS], crowd),
        will_grace_ms: match options.sabotage {
            Some(Sabotage::HoldLeftWills) => 1 << 40,
            Some(Sabotage::HurryLeftWills) => 0,
            _ => 10_000,
        },
        spans: options.spans.then_some(SpanSettings { sampled_per_million: 300_000 }),
        ..Settings::default()
    };
    let mut limits = Limits {
        in_flight_max: 1 + random.below(20) as u16,
        outbox_bytes_max: 200 + random.below(2000) as u32,
        ..Limits::default()
    };
    if let Some(overflow) = options.overflow {
        limits.queue = small_queue(overflow);
    }
    (settings, limits)
}

pub(crate) fn new_terms(options: Options) -> Terms {
    Terms {
        is_lossy: options.overflow.is_some(),
        is_crowded: options.hostile && options.durable,
        may_refuse: options.overflow == Some(Overflow::Reject),
        ..Terms::default()
    }
}

pub(crate) fn small_queue(overflow: Overflow) -> QueueLimits {
    // Who is cut off for what is retained would come back for it for ever.
    let messages_max = if overflow == Overflow::Disconnect { RETAINED_MAX } else { 5 };
    QueueLimits { messages_max, bytes_max: 10_000, overflow, keeps_qos0: false }
}

/// Mail before a shard, where others flood it.
const FLOODED_MAIL_BYTES: u64 = 2_000;

/// Mail before a shard, where journals are small.
pub(crate) const SMALL_MAIL_BYTES: u64 = 5_000;

/// Room for all, of which the hostile ones take what they can: all who keep to the rules need less
/// than an eighth of it.
pub(crate) fn share_out(
    options: Options,
    settings: &mut Settings,
    disks: Option<&mut Disks>,
    mob: &Mob,
    padding_max: usize,
) {
    if options.sabotage == Some(Sabotage::IgnoreBudget) {
        settings.turn_units = u32::MAX;
    }
    if !options.hostile {
        return;
    }
    if mob.has_floods {
        settings.mail_bytes_max = settings.mail_bytes_max.min(FLOODED_MAIL_BYTES);
    }
    if let Some(disks) = disks.filter(|_| mob.has_small_journals) {
        disks.make_journals_small(padding_max);
        // What is under way between shards was admitted before the journals got short.
        settings.mail_bytes_max = settings.mail_bytes_max.min(SMALL_MAIL_BYTES);
    }
    let largest = 1_000 + padding_max as u64;
    settings.sessions_bytes_max = 8 * HONEST_SESSIONS_BYTES;
    settings.retained_bytes_max = 8 * 2 * u64::from(RETAINED_MAX) * largest;
}

/// How firmly things are kept in a durable world.
pub(crate) fn set_levels(
    settings: &mut Settings,
    limits: &mut Limits,
    terms: &mut Terms,
    random: &mut Random,
) {
    limits.durability = if random.chance(70) { Durability::Fsync } else { Durability::Disk };
    if random.chance(50) {
        settings.when_full = WhenFull::Wait;
    }
    if random.chance(30) {
        let levels = [Durability::Memory, Durability::Disk, Durability::Fsync];
        let level = pick(&levels, random);
        settings.topic_durability.push((ODD_TOPICS.into(), level));
        terms.topic_level = Some((ODD_TOPICS, level));
    }
    terms.level = limits.durability;
}

/// What is acknowledged in a cluster of several cells is on the disks of a quorum. Publishers whose
/// messages are for a cell without an owner are refused after a while.
fn set_terms_of_cells(
    (settings, limits, terms): &mut (&mut Settings, &mut Limits, &mut Terms),
    clients: &mut [ModelClient],
    random: &mut Random,
) {
    limits.durability = Durability::Fsync;
    limits.shared_available = false;
    settings.topic_durability.clear();
    terms.topic_level = None;
    terms.level = limits.durability;
    terms.may_refuse = true;
    let is_narrow = random.chance(50);
    clients.iter_mut().for_each(|client| want_in_cells(client, is_narrow, random));
}

/// Bytes of the largest messages, and how often clients come and go.
pub(crate) fn moods(random: &mut Random) -> (usize, usize) {
    let padding_max = pick(&[0, 300, 3000, 8000], random);
    (padding_max, pick(&[5, 20, 100], random))
}

/// In a cluster what is promised at all is promised by a quorum.
pub(crate) fn set_levels_of_cluster(
    settings: &mut Settings,
    limits: &mut Limits,
    terms: &mut Terms,
    random: &mut Random,
) {
    set_levels(settings, limits, terms, random);
    let level = pick(&[Durability::Fsync, Durability::Quorum], random);
    (limits.durability, terms.level) = (level, level);
    if terms.topic_level.is_some() {
        let levels = [Durability::Memory, Durability::Disk, Durability::Fsync, Durability::Quorum];
        let level = pick(&levels, random);
        settings.topic_durability = vec![(ODD_TOPICS.into(), level)];
        terms.topic_level = Some((ODD_TOPICS, level));
    }
}

/// Refusing a 3.1.1 publisher means to cut it: it comes back with the same message before it
/// acknowledges what fills its own queue, and so on for ever.
fn speak_of_refusals(clients: &mut [ModelClient], settings: &Settings) {
    let rejected = clients.iter_mut().filter(|_| settings.rejects);
    rejected.for_each(|client| client.version = Version::V5);
}

/// The clients of a world, and what follows from who they are.
pub(crate) fn new_crowd(
    seed: u64,
    options: Options,
    all: &mut (&mut Settings, &mut Limits, &mut Terms),
    random: &mut Random,
) -> Vec<ModelClient> {
    let mut clients = new_clients(seed, options.durable || options.cluster, random);
    if options.cells {
        set_terms_of_cells(all, &mut clients, random);
    }
    speak_of_refusals(&mut clients, all.0);
    ask_for_everything(options, all.0, &mut clients);
    clients
}

fn new_clients(seed: u64, is_durable: bool, random: &mut Random) -> Vec<ModelClient> {
    let mut clients: Vec<ModelClient> =
        (0..3 + random.below(8) as u32).map(|n| new_client(n, is_durable, random)).collect();
    clients.iter_mut().for_each(|client| leave_wills(client, random));
    let mut local = Random::new(seed ^ (1 << 58));
    for client in clients.iter_mut().filter(|client| client.version == Version::V5) {
        client.no_local = local.chance(30);
    }
    let mut readers = Random::new(seed ^ (1 << 61));
    for client in clients.iter_mut().filter(|_| is_durable) {
        read_retained(client, &mut readers);
    }
    clients
}

pub(crate) fn new_client(number: u32, is_durable: bool, random: &mut Random) -> ModelClient {
    let version = if random.chance(50) { Version::V5 } else { Version::V311 };
    let is_persistent = number == GROUP_KEEPER || random.chance(60);
    let expiry_secs = match (is_persistent, version) {
        (false, _) => 0,
        (true, Version::V5) if number != GROUP_KEEPER && random.chance(30) => {
            pick(&[5, 30, 300], random)
        }
        (true, _) => NEVER_SECS,
    };
    let receive_max = [1, 2, 10, 1000][random.below(4)];
    let mut client = ModelClient::new(number, version, expiry_secs, receive_max);
    let mut filters = vec![("t/#", QoS::ExactlyOnce), ("t/+/1", QoS::AtLeastOnce)];
    filters.push(("t/0/0", QoS::AtMostOnce));
    filters.push(("t/1/1", QoS::ExactlyOnce));
    let mut wants_any = false;
    for (filter, qos) in filters {
        if random.chance(50) {
            client.want(filter, qos);
            wants_any = true;
        }
    }
    if number == GROUP_KEEPER || random.chance(40) {
        client.want("$share/s/g/#", QoS::AtLeastOnce);
        wants_any = true;
    }
    if !wants_any || (is_durable && random.chance(20)) {
        client.want("t/+/+", QoS::ExactlyOnce);
    }
    client
}

/// No group spans cells. Where filters are narrow, other cells have to hear of nearly each
/// SUBSCRIBE.
fn want_in_cells(client: &mut ModelClient, is_narrow: bool, random: &mut Random) {
    client.leave_groups(is_narrow);
    if is_narrow || client.wants_nothing() {
        for _ in 0..1 + random.below(3) {
            let publisher = random.below(10);
            let filter = format!("t/{publisher}/{}", random.below(3));
            client.want(&filter, pick(&[QoS::AtLeastOnce, QoS::ExactlyOnce], random));
        }
    }
}

/// Some clients leave a will with each connection, and some watch for them.
pub(crate) fn leave_wills(client: &mut ModelClient, random: &mut Random) {
    if random.chance(60) {
        client.habit = Some(Habit::new(client.number, client.version, random));
    }
    if random.chance(50) {
        client.want("w/#", QoS::ExactlyOnce);
    }
}

/// Some clients want what is retained, too, and what was with each SUBSCRIBE.
pub(crate) fn read_retained(client: &mut ModelClient, random: &mut Random) {
    if random.chance(30) {
        client.want("r/#", QoS::ExactlyOnce);
    }
}

/// For packets under way. Where there is little of it, the share of one user is little more than
/// the largest packet.
pub(crate) const fn room_bytes(is_tight: bool, is_hostile: bool) -> u64 {
    match (is_tight, is_hostile) {
        (false, _) => 1 << 30,
        (true, false) => 40 * 1024,
        (true, true) => 512 * 1024,
    }
}

pub(crate) fn pick<T: Copy>(choices: &[T], random: &mut Random) -> T {
    choices[random.below(choices.len())]
}

pub(crate) const BEGIN_MS: u64 = 1_700_000_000_000;

/// Each client has one topic on which it retains.
pub(crate) const RETAINED_MAX: u32 = 10;

/// What the sessions of all honest clients may count for.
pub(crate) const HONEST_SESSIONS_BYTES: u64 = 64 * 1024;

/// After so long no session of a hostile client is left.
pub(crate) const PARTING_MS: u64 = 60_000;

/// Messages that durable worlds may keep at a level of their own.
pub(crate) const ODD_TOPICS: &str = "t/+/2";

pub(crate) const STRATEGIES: [ShareStrategy; 6] = [
    ShareStrategy::Random,
    ShareStrategy::RoundRobin,
    ShareStrategy::LeastInFlight,
    ShareStrategy::Sticky,
    ShareStrategy::HashClient,
    ShareStrategy::HashTopic,
];
