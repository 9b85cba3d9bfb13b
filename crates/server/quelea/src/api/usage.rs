//! What the broker uses and loses: memory by owner, dropped messages by reason and by client.

use base::{memory, resident_bytes};
use broker::command::DropsView;
use broker::{Answer, Command, Metrics, Scope};
use session::MemoryKind;

use super::call::Call;
use super::paging::other_answer;
use super::route::Outcome;
use super::schema::{Rows, record};
use super::{Api, json, scopes};

record! {
    /// The memory of the broker.
    MemoryUsage {
        /// Resident memory of the process.
        resident_bytes: u64,
        /// Allocated memory, which the limit is for. The rest of the resident memory is code,
        /// stacks and free memory of the allocator.
        allocated_bytes: u64,
        /// The part of it that clients are charged for: queued, sessions, retained and unsent.
        client_bytes: u64,
        /// The part of it that holds messages which were written to the log or read back recently.
        log_cache_bytes: u64,
        /// The rest of it: tables and buffers of the broker itself.
        other_bytes: u64,
        /// The limit (`limits.memory_bytes_max`); null: none.
        max_bytes: Option<u64>,
        /// Bytes of retained messages.
        retained_bytes: u64,
        /// The users and addresses that use most memory, the largest first.
        owners: Vec<MemoryOwner>,
    }
}

record! {
    /// The memory of a user or an address.
    MemoryOwner {
        /// The user or address that is charged.
        owner: String,
        /// Messages queued in memory for its sessions.
        queued_bytes: u64,
        /// Its sessions, with wills and subscriptions.
        session_bytes: u64,
        /// Its retained messages.
        retained_bytes: u64,
        /// Bytes queued for its sockets, and packets that have not arrived whole. It is counted
        /// while memory is short.
        unsent_bytes: u64,
        /// Its messages in the log, on the disk.
        logged_bytes: u64,
    }
}

record! {
    /// Messages that were dropped for one reason.
    Drops {
        /// The reason, as in metrics and events.
        reason: String,
        /// The key of the limit that a full queue has reached; null: another reason.
        limit: Option<String>,
        /// Number of messages since the start.
        messages: u64,
        /// The meaning of the reason.
        meaning: String,
    }
}

record! {
    /// A client that has lost messages.
    ClientDrops {
        /// The namespace of the client.
        namespace: String,
        /// The client ID.
        client_id: String,
        /// Messages that were dropped for it.
        messages: u64,
        /// The reason of most of them, as in metrics and events.
        reason: String,
        /// The key of the limit for that reason; null: none.
        limit: Option<String>,
        /// All reasons, the most frequent first.
        reasons: Vec<DropReason>,
        /// Seconds since its first drop was reported.
        first_drop_secs: u64,
        /// Seconds since its last drop was reported.
        last_drop_secs: u64,
    }
}

record! {
    /// Messages that were dropped for one client and reason.
    DropReason {
        /// The reason, as in metrics and events.
        reason: String,
        /// The key of the limit that a full queue has reached; null: another reason.
        limit: Option<String>,
        /// Number of messages.
        messages: u64,
    }
}

pub(crate) fn memory(api: &Api, call: &Call) -> Outcome {
    let shared = &api.shards.shared;
    let owners = shared.ledger.largest(call.limit()).into_iter().map(|consumer| {
        let of = |kind: MemoryKind| consumer.bytes[kind as usize];
        MemoryOwner {
            owner: consumer.name.to_string(),
            queued_bytes: of(MemoryKind::Queued),
            session_bytes: of(MemoryKind::Sessions),
            retained_bytes: of(MemoryKind::Retained),
            unsent_bytes: of(MemoryKind::Unsent),
            logged_bytes: of(MemoryKind::Logged),
        }
    });
    let max_bytes = api.facts.config.limits.memory_bytes_max;
    let in_memory = MemoryKind::ALL.into_iter().filter(|kind| kind.is_in_memory());
    let client_bytes = in_memory.map(|kind| shared.ledger.bytes(kind)).sum::<u64>();
    let log_cache_bytes = shared.total(|metrics| &metrics.log_cache_bytes);
    let allocated_bytes = memory::held_bytes();
    json(&MemoryUsage {
        resident_bytes: resident_bytes().unwrap_or_default(),
        allocated_bytes,
        client_bytes,
        log_cache_bytes,
        other_bytes: allocated_bytes.saturating_sub(client_bytes + log_cache_bytes),
        max_bytes: (max_bytes != u64::MAX).then_some(max_bytes),
        retained_bytes: shared.total(|metrics| &metrics.retained_bytes),
        owners: owners.collect(),
    })
}

pub(crate) fn drops(api: &Api) -> Outcome {
    let shards = &api.shards.shared.metrics;
    let mut items: Vec<Drops> = Vec::new();
    for shard in shards.iter() {
        let dropped = Metrics::descriptions().iter().zip(shard.values());
        let dropped = dropped.filter(|(metric, _)| metric.name == "quelea_messages_dropped_total");
        for (place, (metric, messages)) in dropped.enumerate() {
            match items.get_mut(place) {
                Some(known) => known.messages += messages,
                None => items.push(Drops {
                    reason: value_of(metric.label, "reason").unwrap_or_default(),
                    limit: value_of(metric.label, "limit"),
                    messages,
                    meaning: metric.help.to_owned(),
                }),
            }
        }
    }
    json(&Rows { items, cursor: None })
}

pub(crate) async fn client_drops(api: &Api, call: &Call) -> Outcome {
    let within = scopes::of_list(api, call)?;
    let mut found = Vec::new();
    for shard in 0..api.shards.count() {
        match api.shards.ask(shard, Scope::FIRST, Command::Droppers { within }).await? {
            Answer::Droppers(own) => found.extend(own),
            _ => return Err(other_answer()),
        }
    }
    let now_ms = api.facts.clock.now_ms();
    let mut items: Vec<_> =
        found.into_iter().map(|view| ClientDrops::of(api, view, now_ms)).collect();
    items.sort_by(|one, other| {
        let name = |it: &ClientDrops| (it.namespace.clone(), it.client_id.clone());
        other.messages.cmp(&one.messages).then_with(|| name(one).cmp(&name(other)))
    });
    items.truncate(call.limit());
    json(&Rows { items, cursor: None })
}

impl ClientDrops {
    fn of(api: &Api, view: DropsView, now_ms: u64) -> Self {
        let counted = view.messages.into_iter().filter(|(_, messages)| *messages > 0);
        let mut reasons: Vec<_> = counted
            .map(|(dropped, messages)| DropReason {
                reason: dropped.word().to_owned(),
                limit: dropped.limit().map(|limit| limit.word().to_owned()),
                messages,
            })
            .collect();
        reasons.sort_by_key(|it| std::cmp::Reverse(it.messages));
        let secs_since = |ms: u64| now_ms.saturating_sub(ms) / 1000;
        Self {
            namespace: scopes::name(api, view.scope),
            client_id: view.client_id.into(),
            messages: reasons.iter().map(|it| it.messages).sum(),
            reason: reasons.first().map(|it| it.reason.clone()).unwrap_or_default(),
            limit: reasons.first().and_then(|it| it.limit.clone()),
            reasons,
            first_drop_secs: secs_since(view.first_ms),
            last_drop_secs: secs_since(view.last_ms),
        }
    }
}

/// Of `reason="expired"`, the reason is `expired`.
fn value_of(labels: &str, name: &str) -> Option<String> {
    let mut all = labels.split("\",").filter_map(|label| label.split_once("=\""));
    let (_, value) = all.find(|(own, _)| *own == name)?;
    Some(value.trim_end_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_word_and_each_full_queue_its_limit() {
        let text = |value: &str| Some(value.to_owned());
        assert_eq!(value_of("reason=\"expired\"", "reason"), text("expired"));
        assert_eq!(value_of("reason=\"expired\"", "limit"), None);
        let both = "reason=\"queue_full\",limit=\"queued_bytes_max\"";
        assert_eq!(value_of(both, "reason"), text("queue_full"));
        assert_eq!(value_of(both, "limit"), text("queued_bytes_max"));
        let own = Metrics::descriptions().iter();
        let mut dropped = own.filter(|it| it.name == "quelea_messages_dropped_total").peekable();
        assert!(dropped.peek().is_some());
        assert!(dropped.all(|metric| value_of(metric.label, "reason").is_some()));
    }
}
