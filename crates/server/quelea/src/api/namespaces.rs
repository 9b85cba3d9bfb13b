//! Namespaces: what each may have, and what it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use broker::{Answer, Command, Quota, Scope};
use web::axum::http::StatusCode;

use super::call::Call;
use super::paging::{bad_cursor, other_answer};
use super::problem::Problem;
use super::route::Outcome;
use super::schema::Rows;
use super::views::{Namespace, NamespaceQuota};
use super::{Api, json};
use config::NamespaceState;
use config::namespaces::DEFAULT;
use identity::namespaces::View;

/// By their names.
pub(crate) fn list(api: &Api, call: &Call) -> Outcome {
    let after = call.text("cursor").map(read_cursor).transpose()?;
    let mut views = api.facts.namespaces.behind(after.as_deref(), call.limit() + 1);
    let has_more = views.len() > call.limit();
    views.truncate(call.limit());
    let last = views.last().filter(|_| has_more);
    let cursor = last.map(|view| BASE64_URL_SAFE_NO_PAD.encode(&*view.name));
    json(&Rows { items: shown(api, &views), cursor })
}

pub(crate) fn show(api: &Api, call: &Call) -> Outcome {
    let name = call.needed("name");
    if name == DEFAULT {
        return json(&default());
    }
    let view = api.facts.namespaces.get(name).ok_or_else(|| Problem::missing("namespace", name))?;
    json(&shown(api, &[view]).remove(0))
}

/// It has the limits of the broker, and what the broker counts is all of it and the others.
fn default() -> Namespace {
    Namespace {
        name: DEFAULT.to_owned(),
        state: NamespaceState::Open.as_str().to_owned(),
        maker: "broker".to_owned(),
        hosts: Vec::new(),
        quotas: Vec::new(),
    }
}

fn shown(api: &Api, views: &[View]) -> Vec<Namespace> {
    let scopes = views.iter().map(|view| view.scope).collect();
    let hosts = api.facts.namespaces.hosts_of(&scopes);
    let mut by_scope: BTreeMap<Scope, Vec<String>> = BTreeMap::new();
    for (scope, host) in hosts {
        by_scope.entry(scope).or_default().push(host);
    }
    let shown = views.iter().map(|view| Namespace {
        name: view.name.to_string(),
        state: view.state.as_str().to_owned(),
        maker: view.maker.to_owned(),
        hosts: by_scope.remove(&view.scope).unwrap_or_default(),
        quotas: Quota::ALL.into_iter().map(|quota| quota_of(view, quota)).collect(),
    });
    shown.collect()
}

fn quota_of(view: &View, quota: Quota) -> NamespaceQuota {
    NamespaceQuota {
        name: quota.as_str().to_owned(),
        max: view.space.limit(quota),
        count: view.space.count(quota),
        refused: view.space.refused(quota),
    }
}

/// The state is stored before clients are disconnected, and a client that comes meanwhile finds it.
pub(crate) async fn hold(api: &Arc<Api>, call: &Call, is_held: bool) -> Outcome {
    let name = call.needed("name").to_owned();
    if name == DEFAULT {
        let detail = "the default namespace cannot be suspended";
        let problem = Problem::new(StatusCode::CONFLICT, detail);
        return Err(problem.fix("pause its listeners, or disconnect by filters"));
    }
    let (own, wanted) = (api.clone(), name.clone());
    let held = tokio::task::spawn_blocking(move || {
        let state = own.facts.namespaces.get(&wanted).map(|view| view.state);
        if state == Some(NamespaceState::Deleted) {
            return Ok(None);
        }
        own.facts.namespaces.hold(&wanted, is_held)
    });
    let view = match held.await {
        Ok(Ok(Some(view))) => view,
        Ok(Ok(None)) => return Err(Problem::missing("namespace", &name)),
        Ok(Err(error)) => {
            let detail = format!("nothing was changed: {error:#}");
            return Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail));
        }
        Err(_) => {
            let detail = "internal error: a thread of the broker failed";
            return Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail));
        }
    };
    if view.state != NamespaceState::Open {
        cut_off(api, view.scope).await?;
    }
    super::routing::follow_namespaces(api).await?;
    tracing::info!(namespace = name, state = view.state.as_str(), "state of a namespace changed");
    json(&shown(api, &[view]).remove(0))
}

async fn cut_off(api: &Api, scope: Scope) -> Result<(), Problem> {
    for shard in 0..api.shards.count() {
        let mut next = Some(0);
        while let Some(from) = next {
            next = match api.shards.ask(shard, scope, Command::CutOff { from }).await? {
                Answer::Swept(swept) => swept.next,
                _ => return Err(other_answer()),
            };
        }
    }
    Ok(())
}

fn read_cursor(text: &str) -> Result<String, Problem> {
    let name = BASE64_URL_SAFE_NO_PAD.decode(text).ok();
    name.and_then(|name| String::from_utf8(name).ok()).ok_or_else(|| bad_cursor(text))
}
