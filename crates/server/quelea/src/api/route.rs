//! One route of the API: its caller, its parameters, and what it does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use web::axum::http::StatusCode;
use web::axum::response::Response;
use web::axum::routing::MethodFilter;

use super::Api;
use super::call::Call;
use super::params::Param;
use super::problem::Problem;
use super::schema::Known;
use super::spread::Spread;

/// What is done for whom.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) method: Method,
    /// Below `/api/v1`; `{name}` is a parameter. A name that clients or people choose is a query
    /// parameter instead: HTTP libraries shorten a path with the segment `.` or `..`, and would
    /// call another route.
    pub(crate) path: &'static str,
    /// A second path, which has the name as a segment. Names that libraries rewrite do not arrive.
    pub(crate) segment_path: Option<&'static str>,
    /// The least that its caller has to be.
    pub(crate) role: Role,
    pub(crate) about: &'static str,
    pub(crate) params: &'static [Param],
    pub(crate) body: Option<fn(&mut Known) -> Value>,
    /// None: nothing but the status is answered.
    pub(crate) answer: Option<fn(&mut Known) -> Value>,
    pub(crate) run: Run,
    /// Instead of `run`: an answer that goes on.
    pub(crate) stream: Option<Stream>,
    /// A node of a cluster answers it also while it does not serve: it changes nothing, and asks
    /// no shard.
    pub(crate) without_shards: bool,
    /// Who answers in a cluster with several cells.
    pub(crate) spread: Spread,
    /// A log-in link is enough.
    pub(crate) takes_link: bool,
    /// Users of a namespace may call it, whatever its role: it is about what they have defined.
    pub(crate) takes_tenants: bool,
}

pub(crate) type Run = fn(Arc<Api>, Call) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// An answer that goes on.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) media_type: &'static str,
    pub(crate) begin: Begin,
}

type Begin = fn(Arc<Api>, Call) -> Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;

/// JSON, or nothing where nothing is to be said.
pub(crate) type Outcome = Result<Option<Value>, Problem>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Method {
    Get,
    Post,
    Put,
    Delete,
}

/// Who may do what; each may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Viewer,
    Operator,
    Admin,
}

impl Route {
    pub(crate) const fn status(&self) -> StatusCode {
        if self.answer.is_some() || self.stream.is_some() {
            StatusCode::OK
        } else {
            StatusCode::NO_CONTENT
        }
    }
}

impl Method {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }

    pub(crate) const fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

impl Role {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

pub(crate) const GET: Route = Route {
    method: Method::Get,
    path: "",
    segment_path: None,
    role: Role::Viewer,
    about: "",
    params: &[],
    body: None,
    answer: None,
    run: |_, _| Box::pin(async { Ok(None) }),
    stream: None,
    without_shards: false,
    spread: Spread::Node,
    takes_link: false,
    takes_tenants: false,
};
