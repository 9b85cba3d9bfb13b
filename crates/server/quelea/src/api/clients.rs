//! Clients, their subscriptions, shared groups.

use std::sync::Arc;

use broker::command::{Page, SessionView, Wanted};
use broker::{Answer, Command, Name, Scope, SessionKey};
use topic::TopicLimits;
use web::axum::http::StatusCode;

use super::call::Call;
use super::paging::{Spot, other_answer};
use super::problem::Problem;
use super::route::Outcome;
use super::schema::Rows;
use super::views::{
    CacheCleared, Client, Disconnected, Group, Home, Member, Receiver, Subscription,
};
use super::{Api, bans, client_details, json, scopes};

/// The filters of a list.
fn wanted(api: &Api, call: &Call) -> Result<Wanted, Problem> {
    Ok(Wanted {
        scope: scopes::of_list(api, call)?,
        id_part: call.text("client_id").map(Into::into),
        username: call.text("username").map(Into::into),
        address: call.text("address").map(Into::into),
        connected: call.flag("connected"),
        queued_min: call.number("queued_min").unwrap_or_default(),
    })
}

pub(crate) async fn list(api: &Api, call: &Call) -> Outcome {
    let wanted = wanted(api, call)?;
    let rows = api.collect(
        call,
        |from, max| of_all(Command::Sessions { from: *from, max, wanted: wanted.clone() }),
        |_, answer| match answer {
            Answer::Sessions(page) => Some(parts(page)),
            _ => None,
        },
        |view| row_of(api, view),
    );
    json(&rows.await?)
}

fn row_of(api: &Api, view: SessionView) -> Client {
    let since_ms = view.connection.as_ref().map(|connection| connection.connected_ms);
    let connected_at = since_ms.map(|since_ms| client_details::wall_time(api, since_ms));
    let row = Client::of(scopes::name(api, view.scope), view, api.facts.clock.now_ms());
    Client { connected_at, ..row }
}

/// What is asked about all scopes.
const fn of_all(command: Command) -> (Scope, Command) {
    (Scope::FIRST, command)
}

fn parts<T>(page: Page<T>) -> (Vec<T>, Option<u32>) {
    (page.rows, page.next)
}

pub(crate) async fn show(api: &Api, call: &Call) -> Outcome {
    let (scope, client_id) = one(api, call)?;
    match ask(api, scope, client_id, Command::Session(client_id.into())).await? {
        Answer::Session(Some(view)) => {
            let details = client_details::of(api, scope, &view);
            json(&Client { details, ..row_of(api, *view) })
        }
        Answer::Session(None) => Err(scopes::missing_client(api, scope, client_id, false).await),
        _ => Err(other_answer()),
    }
}

/// The namespaces in which there is a session of this id.
pub(crate) async fn namespaces(api: &Api, call: &Call) -> Outcome {
    let from = Spot::<u32>::of(call, api.shards.count())?.place;
    let homes = scopes::homes(api, call.needed("client_id")).await?;
    let mut rest = homes.into_iter().filter(|(scope, _)| u32::from(scope.number()) >= from);
    let some = rest.by_ref().take(call.limit());
    let home = |(scope, connected)| Home { namespace: scopes::name(api, scope), connected };
    let items = some.map(home).collect();
    let next = rest.next().map(|(scope, _)| Spot { shard: 0, place: scope.number().into() });
    json(&Rows { items, cursor: next.map(|spot: Spot<u32>| spot.write()) })
}

/// The client that a call is about.
fn one<'a>(api: &Api, call: &'a Call) -> Result<(Scope, &'a str), Problem> {
    Ok((scopes::of_one(api, call)?, call.needed("client_id")))
}

pub(crate) async fn subscriptions(api: &Api, call: &Call) -> Outcome {
    let (scope, client_id) = one(api, call)?;
    let shard = api.shards.shared.place_of_client(Name::new(scope, client_id));
    let command = |from, max| Command::Subscriptions { client_id: client_id.into(), from, max };
    let rows = api.collect_one(call, (shard, scope), command, |answer| match answer {
        Answer::Subscriptions(Some(page)) => Ok(page),
        Answer::Subscriptions(None) => Err(Problem::missing("client", client_id)),
        _ => Err(other_answer()),
    });
    let Rows { items, cursor } = match rows.await {
        Err(problem) if problem.status == StatusCode::NOT_FOUND => {
            return Err(scopes::missing_client(api, scope, client_id, false).await);
        }
        rows => rows?,
    };
    json(&Rows { items: items.into_iter().map(Subscription::from).collect(), cursor })
}

pub(crate) async fn disconnect(api: &Arc<Api>, call: &Call) -> Outcome {
    let (scope, client_id) = one(api, call)?;
    if let Some(secs) = call.number("ban_secs") {
        let namespace = call.text(scopes::PARAM);
        let banned = bans::to_ban(api, "client", client_id, namespace, "query")?;
        bans::ban(api, call, banned, api.facts.clock.wall_secs() + secs).await?;
        return Ok(None);
    }
    match ask(api, scope, client_id, Command::Kick(client_id.into())).await? {
        Answer::Done(true) => Ok(None),
        Answer::Done(false) => Err(scopes::missing_client(api, scope, client_id, true).await),
        _ => Err(other_answer()),
    }
}

/// All that meet the filters of a list. A namespace alone does not say which: a library that
/// shortens `/clients/../disconnect?namespace=x` calls this. Each connection is looked at once; who
/// connects meanwhile may stay.
pub(crate) async fn disconnect_some(api: &Api, call: &Call) -> Outcome {
    let wanted = wanted(api, call)?;
    let has_filter = FILTERS.iter().any(|name| call.text(name).is_some());
    let is_all = call.flag("all") == Some(true);
    if has_filter == is_all {
        let names = FILTERS.join(", ");
        let (detail, fix) = if is_all {
            (format!("all=true and {names} exclude each other"), "omit all=true")
        } else {
            let detail = format!("one of {names} is required, or all=true");
            (detail, "say which clients to disconnect; POST /client/disconnect is about one")
        };
        return Err(Problem::bad("query", detail).fix(fix));
    }
    let command = |from, wanted| Command::Disconnect { from, wanted };
    let disconnected = sweep(api, wanted, command).await?;
    json(&Disconnected { disconnected })
}

/// Connections that meet the filters, or all, forget the answers of the authorization service.
pub(crate) async fn forget_verdicts(api: &Api, call: &Call) -> Outcome {
    let wanted = Wanted { connected: Some(true), ..wanted(api, call)? };
    let command = |from, wanted| Command::ForgetVerdicts { from, wanted };
    json(&CacheCleared { connections: sweep(api, wanted, command).await? })
}

/// Carries out a command for all sessions that are wanted. Returns how many those are.
async fn sweep(
    api: &Api,
    wanted: Wanted,
    command: impl Fn(u32, Wanted) -> Command,
) -> Result<u64, Problem> {
    let mut found = 0;
    for shard in 0..api.shards.count() {
        let mut next = Some(0);
        while let Some(from) = next {
            let (scope, command) = of_all(command(from, wanted.clone()));
            next = match api.shards.ask(shard, scope, command).await? {
                Answer::Swept(swept) => {
                    found += u64::from(swept.found);
                    swept.next
                }
                _ => return Err(other_answer()),
            };
        }
    }
    Ok(found)
}

/// What [`disconnect_some`] goes by.
const FILTERS: [&str; 4] = ["client_id", "username", "address", "queued_min"];

pub(crate) async fn purge(api: &Api, call: &Call) -> Outcome {
    let (scope, client_id) = one(api, call)?;
    match ask(api, scope, client_id, Command::Purge(client_id.into())).await? {
        Answer::Done(true) => Ok(None),
        Answer::Done(false) => Err(scopes::missing_client(api, scope, client_id, false).await),
        _ => Err(other_answer()),
    }
}

async fn ask(
    api: &Api,
    scope: Scope,
    client_id: &str,
    command: Command,
) -> Result<Answer, Problem> {
    let home = api.shards.shared.place_of_client(Name::new(scope, client_id));
    Ok(api.shards.ask(home, scope, command).await?)
}

pub(crate) async fn receivers(api: &Api, call: &Call) -> Outcome {
    let topic = call.needed("topic");
    check_topic(api, "query parameter topic", topic)?;
    let scope = scopes::of_one(api, call)?;
    let rows = api.collect(
        call,
        |from, max| (scope, Command::Receivers { topic: topic.into(), from: *from, max }),
        |_, answer| match answer {
            Answer::Receivers(page) => Some(parts(page)),
            _ => None,
        },
        Receiver::from,
    );
    json(&rows.await?)
}

pub(crate) async fn groups(api: &Api, call: &Call) -> Outcome {
    let within = scopes::of_list(api, call)?;
    let rows = api.collect(
        call,
        |from, max| of_all(Command::Groups { within, from: *from, max }),
        |_, answer| match answer {
            Answer::Groups(page) => Some(parts(page)),
            _ => None,
        },
        |view| Group::of(scopes::name(api, view.scope), view),
    );
    json(&rows.await?)
}

pub(crate) async fn members(api: &Api, call: &Call) -> Outcome {
    let (share, filter) = (call.needed("share"), call.needed("filter"));
    let scope = scopes::of_one(api, call)?;
    let command =
        |from, max| Command::Members { share: share.into(), filter: filter.into(), from, max };
    let rows = api.collect_one(call, (0, scope), command, |answer| match answer {
        Answer::Members(Some(page)) => Ok(page),
        Answer::Members(None) => Err(Problem::missing("group", &format!("{share}/{filter}"))),
        _ => Err(other_answer()),
    });
    let Rows { items, cursor } = rows.await?;
    let keys: Vec<SessionKey> = items.iter().map(|member| member.key).collect();
    let names = names(api, scope, &keys).await?;
    let named = items.into_iter().zip(names).map(|(view, client_id)| Member {
        client_id,
        qos: view.qos,
        connected: view.connected,
        in_flight: view.in_flight,
    });
    json(&Rows { items: named.collect(), cursor })
}

/// The client ids of sessions of any shard.
async fn names(
    api: &Api,
    scope: Scope,
    keys: &[SessionKey],
) -> Result<Vec<Option<String>>, Problem> {
    let mut names = vec![None; keys.len()];
    for shard in 0..api.shards.count() {
        let own: Vec<usize> = (0..keys.len()).filter(|at| keys[*at].shard() == shard).collect();
        for some in own.chunks(broker::command::PAGE_ROWS as usize) {
            let asked = some.iter().map(|at| keys[*at]).collect();
            let Answer::Names(found) = api.shards.ask(shard, scope, Command::Names(asked)).await?
            else {
                return Err(other_answer());
            };
            for (at, name) in some.iter().zip(found) {
                names[*at] = name.map(Into::into);
            }
        }
    }
    Ok(names)
}

/// Is it a topic that messages can have?
pub(crate) fn check_topic(api: &Api, place: &str, topic: &str) -> Result<(), Problem> {
    broker::names::check_topic(topic, &limits(api))
        .map_err(|error| Problem::bad(place, error.to_string()))
}

pub(crate) fn check_filter(api: &Api, place: &str, filter: &str) -> Result<(), Problem> {
    let checked = broker::names::check_filter(filter, &limits(api));
    checked.map_err(|error| Problem::bad(place, error.to_string()))
}

fn limits(api: &Api) -> TopicLimits {
    let limits = &api.facts.config.limits;
    TopicLimits { levels_max: limits.topic_levels_max, bytes_max: limits.topic_bytes_max }
}
