//! Calls that concern more than one cell of a cluster: which cells are asked, and what becomes of
//! their answers.
//!
//! The node that the caller has reached asks the cells, wherever they are active, and makes one
//! answer. A cell that does not answer in time is named in `cells_missing` of a list or a sum. A
//! call about one client or topic fails then.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};
use web::axum::http::StatusCode;
use web::axum::response::Response;

use super::asked::{Asked, Silent};
use super::call::Call;
use super::merge::{Cursor, Merge, Part};
use super::paging::bad_cursor;
use super::problem::Problem;
use super::route::{Method, Outcome, Route, Stream};
use super::{Api, bans, merge, streams};
use crate::run::Calls;

/// Who answers a call in a cluster with several cells.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spread {
    /// The node that is asked, about itself.
    Node,
    /// All nodes carry it out, each with its own files.
    Nodes,
    /// All cells, one behind the other.
    Pages,
    /// All cells at once.
    Cells(Merge),
    /// The same, with what the node that is asked knows without them.
    NodeAndCells(Merge),
    /// The same, and the cells of no node alone know it: the first that does.
    First,
    /// The cell of the client ID.
    Client,
    /// The cell of the topic. Of a batch, that of the first topic.
    Topic,
    /// The owner of the bans, then all nodes.
    Bans,
    /// Nobody yet.
    Nobody,
}

/// The field that names the cells that did not answer.
pub(super) const MISSING: &str = "cells_missing";

/// Carries out a call, in all cells that it concerns.
pub(super) async fn run(api: &Arc<Api>, route: &'static Route, call: Call) -> Outcome {
    let Some(calls) = &api.calls_to_cells else { return (route.run)(api.clone(), call).await };
    let asked = Asked::new(route, &call);
    let limit = call.limit();
    match route.spread {
        Spread::Node => (route.run)(api.clone(), call).await,
        Spread::Nodes => in_all_nodes(calls, &asked).await,
        Spread::Pages => pages(calls, asked, (call.text("cursor"), limit)).await,
        Spread::Cells(merge) => in_all_cells(calls, &asked, (merge, None, limit)).await,
        Spread::NodeAndCells(merge) => {
            let own = (route.run)(api.clone(), call).await?;
            in_all_cells(calls, &asked, (merge, own, limit)).await
        }
        Spread::First => first(calls, &asked).await,
        // The list of bans is not where the client is.
        Spread::Client if call.number("ban_secs").is_some() => change_bans(calls, &asked).await,
        Spread::Client => of_one(calls, calls.cell_of_client(&client_of(&call)), &asked).await,
        Spread::Topic => of_one(calls, calls.cell_of_topic(&topic_of(&call)), &asked).await,
        Spread::Bans => change_bans(calls, &asked).await,
        Spread::Nobody => Err(refused()),
    }
}

/// Begins an answer that goes on.
pub(super) async fn begin(
    api: &Arc<Api>,
    (route, stream): (&'static Route, &'static Stream),
    call: Call,
) -> Result<Response, Problem> {
    match (&api.calls_to_cells, route.spread) {
        (None, _) | (Some(_), Spread::Node) => (stream.begin)(api.clone(), call).await,
        (Some(calls), Spread::Cells(_)) => streams::begin(api, calls, (route, stream), &call).await,
        (Some(_), _) => Err(refused()),
    }
}

fn refused() -> Problem {
    let detail = "this call is not available in a cluster with several cells yet";
    let fix = "docs/use/cluster.md lists the parts that several cells lack";
    Problem::new(StatusCode::NOT_IMPLEMENTED, detail).fix(fix)
}

/// The client that a call is about.
fn client_of(call: &Call) -> String {
    call.text("client_id")
        .map_or_else(|| of_body(call, |body| body["client_id"].clone()), str::to_owned)
}

fn topic_of(call: &Call) -> String {
    let first = |body: &Value| match &body["messages"][0]["topic"] {
        Value::Null => body["topic"].clone(),
        topic => topic.clone(),
    };
    call.text("topic").map_or_else(|| of_body(call, first), str::to_owned)
}

/// A body that is malformed is refused by any cell.
fn of_body(call: &Call, of: impl Fn(&Value) -> Value) -> String {
    let body: Value = serde_json::from_slice(call.body_bytes()).unwrap_or_default();
    of(&body).as_str().unwrap_or_default().to_owned()
}

async fn of_one(calls: &Calls, cell: u16, asked: &Asked) -> Outcome {
    calls.ask(cell, asked).await.map_err(Problem::from)?
}

/// What a cell has answered; one that has a role and may not use it has not.
async fn asked_of(calls: &Calls, cell: u16, asked: &Asked) -> Result<Outcome, Silent> {
    let node = calls.node_of(cell);
    match calls.ask(cell, asked).await? {
        Err(problem) if problem.status == StatusCode::SERVICE_UNAVAILABLE => {
            Err(Silent::Node { node: node.unwrap_or_default(), cell: Some(cell) })
        }
        outcome => Ok(outcome),
    }
}

/// `own`: what this node knows without its cells.
async fn in_all_cells(
    calls: &Calls,
    asked: &Asked,
    (merge, own, limit): (Merge, Option<Value>, usize),
) -> Outcome {
    let answers = (0..calls.cells()).map(|cell| async move {
        let node = calls.node_of(cell).unwrap_or_default();
        (cell, node, asked_of(calls, cell, asked).await)
    });
    let (mut parts, mut missing, mut problem) = (Vec::new(), Vec::new(), None);
    for (cell, node, answer) in join_all(answers).await {
        match answer {
            Ok(Ok(value)) => parts.push(Part { cell, node, value: value.unwrap_or_default() }),
            Ok(Err(wrong)) => problem = problem.or(Some(wrong)),
            Err(silent) => missing.push((cell, silent)),
        }
    }
    if let Some(problem) = problem {
        return Err(problem);
    }
    if parts.is_empty() {
        return Err(none_answered());
    }
    let shards = calls.shards_of_cell();
    let (node, own) = (calls.own_node(), own.unwrap_or_default());
    let ground = merge::Ground { node, own, shards, limit, missing: &missing };
    let value = merge(&ground, parts);
    let missing: Vec<u16> = missing.iter().map(|(cell, _)| *cell).collect();
    Ok(Some(with_missing(value, &missing)))
}

fn none_answered() -> Problem {
    let detail = "no cell answers";
    let fix = "check /readyz of the nodes, and `quelea cluster status`";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).fix(fix)
}

fn with_missing(mut value: Value, missing: &[u16]) -> Value {
    if !missing.is_empty() {
        value[MISSING] = json!(missing);
    }
    value
}

/// The first cell that knows it.
async fn first(calls: &Calls, asked: &Asked) -> Outcome {
    let answers = (0..calls.cells()).map(|cell| asked_of(calls, cell, asked));
    let answers = join_all(answers).await;
    let is_silent = answers.iter().any(Result::is_err);
    let mut problem = None;
    for outcome in answers.into_iter().flatten() {
        match outcome {
            Err(wrong) if wrong.status == StatusCode::NOT_FOUND => problem = Some(wrong),
            outcome => return outcome,
        }
    }
    Err(problem.filter(|_| !is_silent).unwrap_or_else(none_answered))
}

/// A page of all cells: rows of the first, then of the next, until there are enough. A cell that
/// does not answer is passed over, and so are others of its node.
async fn pages(calls: &Calls, asked: Asked, (cursor, limit): (Option<&str>, usize)) -> Outcome {
    let mut at = match cursor {
        None => Cursor { cell: 0, rest: None },
        Some(text) => {
            let read = Cursor::read(text).filter(|at| at.cell < calls.cells());
            read.ok_or_else(|| bad_cursor(text))?
        }
    };
    let (mut page, mut missing, mut silent) = (Value::Null, Vec::new(), Vec::new());
    while at.cell < calls.cells() {
        let left = limit.saturating_sub(merge::rows_of(&page));
        let next = asked.clone().with("limit", Some(left.to_string()));
        let next = next.with("cursor", at.rest.clone());
        let node = calls.node_of(at.cell);
        let answer = match node.filter(|node| silent.contains(node)) {
            Some(node) => Err(Silent::Node { node, cell: Some(at.cell) }),
            None => asked_of(calls, at.cell, &next).await,
        };
        let rest = match answer {
            Ok(outcome) => merge::add_page(&mut page, outcome?.unwrap_or_default()),
            Err(no_answer) => {
                missing.push(at.cell);
                if let Silent::Node { node, .. } = no_answer {
                    silent.push(node);
                }
                None
            }
        };
        let is_short = rest.is_some();
        at = match rest {
            Some(rest) => Cursor { rest: Some(rest), ..at },
            None => Cursor { cell: at.cell + 1, rest: None },
        };
        if is_short || merge::rows_of(&page) >= limit {
            break;
        }
    }
    if page.is_null() && cursor.is_none() {
        return Err(none_answered());
    }
    let has_more = at.cell < calls.cells();
    Ok(Some(with_missing(merge::page(page, has_more.then(|| at.write())), &missing)))
}

/// Each node changes its own files: those of all nodes are to be the same.
async fn in_all_nodes(calls: &Calls, asked: &Asked) -> Outcome {
    let members = calls.members();
    let answers = join_all(members.iter().map(|node| calls.ask_node(node, asked))).await;
    let (mut done, mut problem, mut silent) = (None, None, Vec::new());
    for (node, answer) in members.iter().zip(answers) {
        match answer {
            Ok(Ok(value)) => done = done.or(Some(value)),
            Ok(Err(wrong)) => problem = problem.or(Some(wrong)),
            Err(_) => silent.push(node.as_str()),
        }
    }
    match (done, problem) {
        (_, Some(problem)) => Err(problem),
        (Some(value), None) if silent.is_empty() => Ok(value),
        (done, None) => {
            let names = silent.join(", ");
            let detail = match done {
                Some(_) => format!("changed, but not at nodes that do not answer: {names}"),
                None => format!("nodes do not answer: {names}"),
            };
            let fix = "repeat the call when all nodes answer, or copy the file to them";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).fix(fix))
        }
    }
}

/// Cell 0 has the list. All nodes read it before the answer, and each second.
async fn change_bans(calls: &Calls, asked: &Asked) -> Outcome {
    let done = of_one(calls, bans::CELL_OF_BANS, asked).await?;
    calls.follow_bans().await;
    Ok(done)
}

/// Whether an answer may be that of some of the cells.
pub(super) fn may_be_partial(route: &Route) -> bool {
    let is_partial =
        matches!(route.spread, Spread::Pages | Spread::Cells(_) | Spread::NodeAndCells(_));
    is_partial && route.stream.is_none()
}

/// What a call that changes something is given longer for.
pub(crate) fn is_change(asked: &Asked) -> bool {
    asked.method != Method::Get
}
