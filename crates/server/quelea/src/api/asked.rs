//! A call as one node passes it to another: what is asked of a cell or of a node, and the answer.
//!
//! The node that the caller has reached has authenticated it, and has checked its role.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use web::axum::response::Response;

use super::Api;
use super::call::Call;
use super::problem::{Problem, ProblemDetails};
use super::route::{Method, Outcome, Route};
use super::routes::routes;
use super::views::Caller;
use super::{bans, cluster};

/// A call of the table of routes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    /// As in the table.
    path: String,
    /// Each is in the table.
    values: Vec<(String, String)>,
    body: String,
    caller: Caller,
}

/// Calls that are in no table: only nodes make them.
const FOLLOW_BANS: &str = "nodes: follow bans";
const OWN_BANS: &str = "nodes: bans";
const FIGURES: &str = "nodes: figures";

/// What a node answers at once. What streams send follows behind it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done(Option<Value>),
    Refused(ProblemDetails),
    Stream,
    /// This node does not serve the cell now.
    NotHere,
}

/// Why there is no answer of a cell or a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Silent {
    /// No node serves the cell.
    NoOwner(u16),
    /// This node does not answer, for this cell or at all.
    Node { node: String, cell: Option<u16> },
}

impl fmt::Display for Silent {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOwner(cell) => write!(to, "no node serves cell {cell} now"),
            Self::Node { node, cell: Some(cell) } => {
                write!(to, "node '{node}', which serves cell {cell}, does not answer")
            }
            Self::Node { node, cell: None } => write!(to, "node '{node}' does not answer"),
        }
    }
}

impl Asked {
    pub(super) fn new(route: &Route, call: &Call) -> Self {
        let values = call.values().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            method: route.method,
            path: route.path.to_owned(),
            values: values.collect(),
            body: String::from_utf8_lossy(call.body_bytes()).into_owned(),
            caller: call.caller.clone(),
        }
    }

    /// Has a node read the bans that cell 0 has.
    pub(crate) fn follow_bans() -> Self {
        Self::of_nodes(FOLLOW_BANS, Method::Post)
    }

    /// Asks cell 0 for the bans that the API has added.
    pub(super) fn own_bans() -> Self {
        Self::of_nodes(OWN_BANS, Method::Get)
    }

    /// Asks a node for the figures of its cells.
    pub(crate) fn figures() -> Self {
        Self::of_nodes(FIGURES, Method::Get)
    }

    pub(crate) fn is_for_figures(&self) -> bool {
        self.path == FIGURES
    }

    /// What only nodes ask each other.
    fn of_nodes(path: &str, method: Method) -> Self {
        let caller = Caller { name: "node".into(), role: "admin".into(), namespace: None };
        Self { method, path: path.into(), values: Vec::new(), body: String::new(), caller }
    }

    /// The same with another value of a parameter. None: without one.
    pub(super) fn with(mut self, name: &str, value: Option<String>) -> Self {
        self.values.retain(|(known, _)| known != name);
        self.values.extend(value.map(|value| (name.to_owned(), value)));
        self
    }

    pub(crate) fn is_stream(&self) -> bool {
        let is_meant = |route: &&Route| route.path == self.path && route.method == self.method;
        routes().find(is_meant).is_some_and(|route| route.stream.is_some())
    }

    fn call(&self) -> Result<(&'static Route, Call), Problem> {
        let is_meant = |route: &&Route| route.path == self.path && route.method == self.method;
        // A node of a newer version may ask for what this one does not know.
        let route = routes().find(is_meant).ok_or_else(|| Problem::missing("route", &self.path))?;
        let mut call = Call::of_node(route, &self.values, self.caller.clone())?;
        call.put_body(self.body.clone().into_bytes());
        Ok((route, call))
    }
}

impl Api {
    /// Answers what another node asks, or this one of its own cells.
    pub(crate) async fn answer(self: &Arc<Self>, asked: &Asked) -> Outcome {
        match asked.path.as_str() {
            FOLLOW_BANS => return Box::pin(bans::follow(self)).await.map(|()| None),
            OWN_BANS => return bans::own(self),
            _ => {}
        }
        let (route, call) = asked.call()?;
        cluster::check_serves(self, route)?;
        let of_tenants = match call.tenant() {
            Some(_) => self.tenant_calls.clone().acquire_owned().await.ok(),
            None => None,
        };
        let place = self.calls.clone().acquire_owned().await;
        let api = self.clone();
        let work = async move {
            let _places = (of_tenants, place);
            (route.run)(api, call).await
        };
        if route.method == Method::Get {
            return work.await;
        }
        // It is carried out whole, whether somebody waits for it or not.
        tokio::spawn(work).await.unwrap_or_else(|_| Err(super::thread_failed()))
    }

    /// The same of an answer that goes on.
    pub(crate) async fn answer_stream(
        self: &Arc<Self>,
        asked: &Asked,
    ) -> Result<Option<Response>, Problem> {
        let (route, call) = asked.call()?;
        let Some(stream) = &route.stream else { return Ok(None) };
        cluster::check_serves(self, route)?;
        (stream.begin)(self.clone(), call).await.map(Some)
    }
}

impl From<Outcome> for Reply {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(value) => Self::Done(value),
            Err(problem) => Self::Refused(problem.into()),
        }
    }
}
