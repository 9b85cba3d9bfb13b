//! Which namespace a call is about. Lists are of all namespaces unless one is named; one client,
//! topic or group is of the default namespace unless another is named.

use std::collections::BTreeMap;

use broker::command::PAGE_LOOKS;
use broker::{Answer, Command, Name, Quota, Scope, ShardId};
use web::axum::http::StatusCode;

use super::Api;
use super::call::Call;
use super::paging::other_answer;
use super::problem::Problem;
use config::NamespaceState;
use config::namespaces::DEFAULT;

/// The name of the parameter.
pub(crate) const PARAM: &str = "namespace";

/// Namespaces that a problem names at most.
const NAMED_MAX: usize = 10;

/// The one that is named, or the default one.
pub(crate) fn of_one(api: &Api, call: &Call) -> Result<Scope, Problem> {
    Ok(of_list(api, call)?.unwrap_or(Scope::FIRST))
}

/// The one that is named. None: all of them.
pub(crate) fn of_list(api: &Api, call: &Call) -> Result<Option<Scope>, Problem> {
    call.text(PARAM).map(|name| known(api, name, "query parameter namespace")).transpose()
}

/// One that messages may go to.
pub(crate) fn of_publish(api: &Api, call: &Call) -> Result<Scope, Problem> {
    let scope = of_one(api, call)?;
    let name = call.text(PARAM).unwrap_or(DEFAULT);
    let view = api.facts.namespaces.get(name);
    if view.is_some_and(|view| view.state == NamespaceState::Deleted) {
        let detail = format!("the namespace '{name}' is being deleted and accepts no messages");
        let problem = Problem::new(StatusCode::CONFLICT, detail).at("query parameter namespace");
        return Err(problem.fix("wait for the line `namespace deleted` in the log"));
    }
    Ok(scope)
}

/// The number of a namespace that is named at this place of a request.
pub(crate) fn known(api: &Api, name: &str, place: &str) -> Result<Scope, Problem> {
    api.facts.namespaces.scope_of(name).ok_or_else(|| {
        let fix = "GET /namespaces lists the namespaces; `default` is always there";
        Problem::missing("namespace", name).at(place).fix(fix)
    })
}

pub(crate) fn name(api: &Api, scope: Scope) -> String {
    api.facts.namespaces.name_of(scope).into()
}

/// Is there a namespace in addition to the default one?
pub(crate) fn are_several(api: &Api) -> bool {
    !api.facts.namespaces.behind(None, 1).is_empty()
}

/// The default one and those that have some of it.
pub(crate) fn all_with(api: &Api, quota: Quota) -> Vec<Scope> {
    let others = api.facts.namespaces.all().into_iter().filter(|view| view.space.count(quota) > 0);
    let mut scopes: Vec<Scope> = others.map(|view| view.scope).chain([Scope::FIRST]).collect();
    scopes.sort_unstable();
    scopes
}

/// Where a client id has a session, each with whether it is connected, by their numbers.
pub(crate) async fn homes(api: &Api, client_id: &str) -> Result<Vec<(Scope, bool)>, Problem> {
    let mut by_shard: BTreeMap<ShardId, Vec<Scope>> = BTreeMap::new();
    for scope in all_with(api, Quota::Sessions) {
        let home = api.shards.shared.place_of_client(Name::new(scope, client_id));
        by_shard.entry(home).or_default().push(scope);
    }
    let mut found = Vec::new();
    for (shard, scopes) in by_shard {
        for some in scopes.chunks(PAGE_LOOKS as usize) {
            let command = Command::Homes { client_id: client_id.into(), scopes: some.to_vec() };
            match api.shards.ask(shard, Scope::FIRST, command).await? {
                Answer::Homes(own) => found.extend(own),
                _ => return Err(other_answer()),
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// There is no such client in a namespace; says where there are some of this id, or connected ones.
pub(crate) async fn missing_client(
    api: &Api,
    scope: Scope,
    client_id: &str,
    only_connected: bool,
) -> Problem {
    let word = if only_connected { "connected client" } else { "client" };
    let problem = Problem::missing(word, client_id);
    if !are_several(api) {
        return problem;
    }
    let own = name(api, scope);
    let detail = format!("unknown {word} '{client_id}' in the namespace '{own}'");
    let problem = Problem::new(StatusCode::NOT_FOUND, detail).at("query parameter namespace");
    // What it would have added is all that is lost.
    let homes = homes(api, client_id).await.unwrap_or_default();
    let wanted = homes.into_iter().filter(|(_, connected)| *connected || !only_connected);
    let others: Vec<String> = wanted.map(|(scope, _)| name(api, scope)).collect();
    match others.is_empty() {
        true => problem,
        false => problem.fix(named_in(&others)),
    }
}

/// Says to name one of these.
pub(crate) fn named_in(names: &[String]) -> String {
    let more = if names.len() > NAMED_MAX { ", …" } else { "" };
    let shown = names[..names.len().min(NAMED_MAX)].join(", ");
    format!("set the parameter `namespace`; the client exists in: {shown}{more}")
}
