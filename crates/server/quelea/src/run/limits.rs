//! From the configuration to what the core calls limits and settings.

use std::sync::Arc;

use broker::{
    Durability, Limits, MAIL_BYTES_MAX, ServiceSettings, SessionOwner, Settings, ShareStrategy,
    SpanSettings, WhenFull,
};
use codec::QoS;
use session::{Overflow, QueueLimits, Rate};
use topic::TopicLimits;

use config::{
    self, Config, DenyAction, DurabilityLevel, Listener, ListenerLimits, NEVER, QueueOverflow,
    SharedStrategy,
};

/// Of the memory, what may wait in connections before less is kept for those that do not read.
const UNSENT_PART: u64 = 8;

/// The limits of one listener's connections.
pub(super) fn of_listener(config: &Config, listener: &Listener) -> Arc<Limits> {
    Arc::new(of(config, &listener.limits, &listener.name))
}

/// The limits of restored sessions, until their clients connect again. What was kept goes on being
/// kept, so the firmest level of any listener holds.
pub(super) fn of_restored(config: &Config) -> Arc<Limits> {
    let levels = config.listeners.iter().map(|listener| listener.limits.durability);
    let firmest = levels.chain([config.durability.level]).max_by_key(|level| *level as u8);
    let own = ListenerLimits {
        durability: firmest.unwrap_or(config.durability.level),
        ..config.listener_defaults
    };
    Arc::new(of(config, &own, ""))
}

/// The limits of the sessions of bridges. Their windows are those of the remotes.
pub(super) fn of_bridges(config: &Config) -> Limits {
    let own = ListenerLimits {
        keep_alive_max_secs: 0,
        in_flight_max: u16::MAX,
        receive_max: u16::MAX,
        messages_per_second_max: 0,
        bytes_per_second_max: 0,
        ..config.listener_defaults
    };
    Limits {
        keep_alive_default_secs: 0,
        session_expiry_max_secs: NEVER,
        ..of(config, &own, "bridge")
    }
}

fn of(config: &Config, own: &ListenerLimits, listener: &str) -> Limits {
    let all = &config.limits;
    let bytes_rate = u32::try_from(own.bytes_per_second_max).unwrap_or(u32::MAX);
    let bytes_burst = u32::try_from(own.bytes_burst).unwrap_or(u32::MAX);
    Limits {
        listener: listener.into(),
        packet_bytes_max: own.packet_bytes_max,
        topic: TopicLimits { levels_max: all.topic_levels_max, bytes_max: all.topic_bytes_max },
        connect_bytes_max: all.connect_bytes_max,
        username_bytes_max: all.username_bytes_max,
        password_bytes_max: all.password_bytes_max,
        client_id_bytes_max: all.client_id_bytes_max,
        client_id_v31_chars_max: all.client_id_v31_chars_max,
        will_payload_bytes_max: all.will_payload_bytes_max,
        will_bytes_max: all.will_bytes_max,
        properties_bytes_max: all.properties_bytes_max,
        subscription_bytes_max: all.subscription_bytes_per_client_max,
        subscriptions_per_client_max: all.subscriptions_per_client_max,
        shared_subscriptions_per_client_max: all.shared_subscriptions_per_client_max,
        filters_per_packet_max: all.filters_per_packet_max,
        in_flight_max: own.in_flight_max,
        receive_max: own.receive_max,
        alias_in_max: own.topic_alias_max,
        alias_out_max: own.topic_alias_max,
        queue: queue(config),
        outbox_bytes_max: all.outbox_bytes_max,
        session_expiry_max_secs: all.session_expiry_max_secs,
        session_expiry_v3_secs: all.session_expiry_v3_secs,
        message_expiry_max_secs: match all.message_expiry_max_secs {
            NEVER => 0,
            secs => secs,
        },
        keep_alive_max_secs: own.keep_alive_max_secs,
        keep_alive_default_secs: all.keep_alive_default_secs,
        will_delay_max_secs: all.will_delay_max_secs,
        qos_max: QoS::try_from(own.qos_max).unwrap_or(QoS::ExactlyOnce),
        retain_available: all.retain_available,
        wildcard_available: all.wildcard_available,
        shared_available: all.shared_available,
        subscription_ids_available: all.subscription_ids_available,
        message_rate: Rate { per_second: own.messages_per_second_max, burst: own.messages_burst },
        byte_rate: Rate { per_second: bytes_rate, burst: bytes_burst },
        durability: durability(own.durability),
    }
}

pub(crate) fn durability(level: DurabilityLevel) -> Durability {
    match level {
        DurabilityLevel::Memory => Durability::Memory,
        DurabilityLevel::Disk => Durability::Disk,
        DurabilityLevel::Fsync => Durability::Fsync,
        DurabilityLevel::Quorum => Durability::Quorum,
    }
}

/// The settings of the whole broker.
pub(super) fn of_broker(config: &Config) -> Settings {
    Settings {
        session_owner: session_owner(config),
        retained_messages_max: config.limits.retained_messages_max.into(),
        retained_bytes_max: config.limits.retained_bytes_max,
        retained_bytes_per_owner_max: match config.limits.retained_bytes_per_user_max {
            0 => None,
            max => Some(max),
        },
        queues_bytes_max: config.limits.queues_bytes_max,
        sessions_bytes_max: config.limits.sessions_bytes_max,
        unsent_bytes_max: config.limits.memory_bytes_max / UNSENT_PART,
        share_strategy: match config.shared_strategy {
            SharedStrategy::Random => ShareStrategy::Random,
            SharedStrategy::RoundRobin => ShareStrategy::RoundRobin,
            SharedStrategy::LeastInFlight => ShareStrategy::LeastInFlight,
            SharedStrategy::Sticky => ShareStrategy::Sticky,
            SharedStrategy::HashClient => ShareStrategy::HashClient,
            SharedStrategy::HashTopic => ShareStrategy::HashTopic,
        },
        share_queue: queue(config),
        rejects: config.limits.queue_overflow == QueueOverflow::Reject,
        topic_durability: {
            let rules = config.durability.topics.iter();
            rules.map(|(filter, level)| (filter.as_str().into(), durability(*level))).collect()
        },
        when_full: match config.durability.when_full {
            config::WhenFull::Refuse => WhenFull::Refuse,
            config::WhenFull::Wait => WhenFull::Wait,
        },
        will_grace_ms: u64::try_from(config.durability.will_grace().as_millis()).unwrap_or(0),
        // Half an outbox is left when a subscriber counts as behind, and its publishers are slowed
        // down.
        mail_bytes_max: MAIL_BYTES_MAX.min(u64::from(config.limits.outbox_bytes_max / 2)),
        service: config.authorization.as_ref().map(|own| ServiceSettings {
            entries_max: own.cache_entries_max,
            holds_ms: u64::from(own.cache_secs) * 1000,
            no_match_allows: own.no_match_allows,
        }),
        denied_ends: config.access.deny_action == DenyAction::Disconnect,
        spans: config
            .telemetry
            .as_ref()
            .filter(|own| own.traces)
            .map(|own| SpanSettings { sampled_per_million: own.traces_per_million }),
        ..Settings::default()
    }
}

/// A name that nobody can prove makes nobody an owner.
fn session_owner(config: &Config) -> SessionOwner {
    match config.auth.session_owner {
        config::SessionOwner::User if config.proves_names() => {
            SessionOwner::User { may_adopt: !config.admits_nameless() }
        }
        config::SessionOwner::User | config::SessionOwner::Anybody => SessionOwner::Anybody,
    }
}

fn queue(config: &Config) -> QueueLimits {
    QueueLimits {
        messages_max: config.limits.queued_messages_max,
        bytes_max: config.limits.queued_bytes_max,
        overflow: match config.limits.queue_overflow {
            QueueOverflow::DropOldest => Overflow::DropOldest,
            QueueOverflow::DropNewest => Overflow::DropNewest,
            QueueOverflow::Reject => Overflow::Reject,
            QueueOverflow::Disconnect => Overflow::Disconnect,
        },
        keeps_qos0: config.limits.queue_qos0_offline,
    }
}
