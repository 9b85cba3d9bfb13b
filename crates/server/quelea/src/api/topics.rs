//! All subscriptions, and the tree of topics with a retained message.

use std::collections::BTreeMap;

use broker::command::{OwnedSubscription, SubscriptionPlace, WantedSubscriptions};
use broker::{Answer, Command, Scope};
use topic::CHILD_COUNT_MAX;

use super::call::Call;
use super::clients::{check_filter, check_topic};
use super::paging::{Mark, TopicMark, bad_cursor, other_answer};
use super::problem::Problem;
use super::route::Outcome;
use super::schema::{Rows, record};
use super::{Api, json, scopes};

record! {
    /// A subscription, and the client that has it.
    ClientSubscription {
        /// The namespace that the client belongs to.
        namespace: String,
        /// The client ID.
        client_id: String,
        /// The filter, without a share name.
        filter: String,
        /// The share name; null: it is not shared.
        share: Option<String>,
        /// The highest QoS of deliveries.
        qos: u8,
        /// The client does not receive its own messages (No Local).
        no_local: bool,
        /// Messages keep their retain flag (Retain As Published).
        retain_as_published: bool,
        /// The subscription identifier; null: none.
        identifier: Option<u32>,
    }
}

record! {
    /// A level of the tree of topics with a retained message.
    Topic {
        /// The namespace that it belongs to.
        namespace: String,
        /// The text of the level; it may be empty.
        level: String,
        /// The topic that ends with this level: the value of `prefix` for the levels below.
        topic: String,
        /// The topic that ends with this level has a retained message.
        retained: bool,
        /// Number of topics below with a retained message.
        topics_below: u64,
        /// False: `topics_below` is a lower bound, because a shard stops counting at 1,000.
        counted: bool,
    }
}

impl Mark for SubscriptionPlace {
    fn write(&self) -> String {
        format!("{}-{}", self.slot, self.count)
    }

    fn read(text: &str) -> Option<Self> {
        let (slot, count) = text.split_once('-')?;
        Some(Self { slot: slot.parse().ok()?, count: count.parse().ok()? })
    }
}

pub(crate) async fn subscriptions(api: &Api, call: &Call) -> Outcome {
    if let Some(filter) = call.text("filter") {
        check_filter(api, "query parameter filter", filter)?;
    }
    if let Some(topic) = call.text("topic") {
        check_topic(api, "query parameter topic", topic)?;
    }
    let wanted = WantedSubscriptions {
        scope: scopes::of_list(api, call)?,
        id_part: call.text("client_id").map(Into::into),
        filter: call.text("filter").map(Into::into),
        topic: call.text("topic").map(Into::into),
        is_shared: call.flag("shared"),
    };
    let rows = api.collect(
        call,
        |from, max| {
            let wanted = wanted.clone();
            (Scope::FIRST, Command::AllSubscriptions { from: *from, max, wanted })
        },
        |_, answer| match answer {
            Answer::AllSubscriptions(page) => Some((page.rows, page.next)),
            _ => None,
        },
        |row| ClientSubscription::of(scopes::name(api, row.scope), row),
    );
    json(&rows.await?)
}

impl ClientSubscription {
    fn of(namespace: String, row: OwnedSubscription) -> Self {
        let view = row.subscription;
        Self {
            namespace,
            client_id: row.client_id.into(),
            filter: view.filter.into(),
            share: view.share.map(Into::into),
            qos: view.qos,
            no_local: view.no_local,
            retain_as_published: view.retain_as_published,
            identifier: (view.identifier != 0).then_some(view.identifier),
        }
    }
}

/// A level as all shards together know it.
#[derive(Debug, Default, PartialEq)]
struct Level {
    has_message: bool,
    below: u64,
    is_lower_bound: bool,
}

/// Levels in their order, which is that of the shards.
type Levels = BTreeMap<(bool, Vec<u8>), Level>;

/// Rounds of questions to all shards for one answer.
const ROUNDS_MAX: usize = 20;

pub(crate) async fn topics(api: &Api, call: &Call) -> Outcome {
    let scope = scopes::of_one(api, call)?;
    let parent = call.text("prefix");
    if parent.is_some_and(|parent| parent.contains(['+', '#'])) {
        let fix = "GET /retained takes a filter";
        return Err(Problem::bad("query parameter prefix", "must have no wildcards").fix(fix));
    }
    let namespace = scopes::name(api, scope);
    let (mut after, mut items) = (begin(call)?, Vec::new());
    for _ in 0..ROUNDS_MAX {
        let max = call.limit() - items.len();
        let (levels, end) = round(api, scope, parent, after.as_deref(), max).await?;
        let row = |((_, level), found)| Topic::of(&namespace, parent, level, &found);
        items.extend(levels.into_iter().map(row));
        after = end;
        if after.is_none() || items.len() >= call.limit() {
            break;
        }
    }
    json(&Rows { items, cursor: after.map(|level| cursor(scope, &level)) })
}

/// The levels that all shards have listed completely, and the last of them if there are more.
async fn round(
    api: &Api,
    scope: Scope,
    parent: Option<&str>,
    after: Option<&[u8]>,
    max: usize,
) -> Result<(Levels, Option<Vec<u8>>), Problem> {
    let (mut levels, mut end) = (Levels::new(), None::<(bool, Vec<u8>)>);
    for shard in 0..api.shards.count() {
        let (parent, after) = (parent.map(Into::into), after.map(Into::into));
        let command = Command::Levels { parent, after, max: max as u32 };
        let Answer::Levels { rows, has_more } = api.shards.ask(shard, scope, command).await? else {
            return Err(other_answer());
        };
        let last = rows.last().map(|row| key(scope, &row.level)).filter(|_| has_more);
        end = [end, last].into_iter().flatten().min();
        for row in rows {
            let level = levels.entry(key(scope, &row.level)).or_default();
            level.has_message |= row.has_message;
            level.below += u64::from(row.below);
            level.is_lower_bound |= row.below >= CHILD_COUNT_MAX;
        }
    }
    if let Some(end) = &end {
        levels.retain(|key, _| key <= end);
    }
    let is_cut = levels.len() > max;
    while levels.len() > max {
        levels.pop_last();
    }
    let last = levels.last_key_value().map(|((_, level), _)| level.clone());
    Ok((levels, last.filter(|_| is_cut || end.is_some())))
}

/// By this the shards order levels: those that begin with `$` come last, except in the first scope.
fn key(scope: Scope, level: &[u8]) -> (bool, Vec<u8>) {
    (!scope.is_first() && level.starts_with(b"$"), level.to_vec())
}

/// A level may be empty, so that something stands before it.
fn cursor(scope: Scope, level: &[u8]) -> String {
    TopicMark { scope, after: Some([b"/", level].concat()) }.write()
}

/// The cursor behind a level of the only namespace.
pub(super) fn cursor_behind(level: &str) -> String {
    cursor(Scope::FIRST, level.as_bytes())
}

fn begin(call: &Call) -> Result<Option<Vec<u8>>, Problem> {
    let Some(text) = call.text("cursor") else { return Ok(None) };
    let mark = TopicMark::read(text).and_then(|mark| mark.after);
    let level = mark.and_then(|after| Some(after.strip_prefix(b"/")?.to_vec()));
    level.map(Some).ok_or_else(|| bad_cursor(text))
}

impl Topic {
    fn of(namespace: &str, parent: Option<&str>, level: Vec<u8>, found: &Level) -> Self {
        // A topic is text.
        let level = String::from_utf8(level).unwrap_or_default();
        Self {
            namespace: namespace.to_owned(),
            topic: parent.map_or_else(|| level.clone(), |parent| format!("{parent}/{level}")),
            level,
            retained: found.has_message,
            topics_below: found.below,
            counted: !found.is_lower_bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_lists_are_read_as_they_were_written() {
        for place in [(0, 0), (7, u32::MAX)] {
            let place = SubscriptionPlace { slot: place.0, count: place.1 };
            assert_eq!(SubscriptionPlace::read(&place.write()), Some(place));
        }
        for wrong in ["", "1", "1-", "-1", "1-2-3"] {
            assert_eq!(SubscriptionPlace::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn levels_of_the_server_come_last_where_shards_list_them_last() {
        let order = |scope: Scope| {
            let mut keys: Vec<_> = [b"$x".as_slice(), b"a", b"!"].map(|it| key(scope, it)).into();
            keys.sort_unstable();
            keys.into_iter().map(|(_, level)| String::from_utf8(level).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(order(Scope::FIRST), ["!", "$x", "a"]);
        assert_eq!(order(Scope::new(1)), ["!", "a", "$x"]);
    }
}
