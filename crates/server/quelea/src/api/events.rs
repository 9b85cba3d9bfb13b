//! The stream of life-cycle events.

use web::axum::http::StatusCode;
use web::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use web::axum::response::{IntoResponse as _, Response};

use super::Api;
use super::call::Call;
use super::problem::Problem;
use super::scopes;
use crate::life_cycle::{Caller, Reading, Wanted};

/// What is said of a stream in the OpenAPI document.
pub(crate) const MEDIA_TYPE: &str = "text/event-stream";

pub(crate) fn stream(api: &Api, call: &Call) -> Result<Response, Problem> {
    scopes::of_list(api, call)?;
    let wanted = Wanted {
        full_type: call.text("type").map(Into::into),
        client_id: call.text("client_id").map(Into::into),
        namespace: call.text(scopes::PARAM).map(Into::into),
    };
    let life_cycle = &api.facts.life_cycle;
    let Some(Reading { queue, lasting }) = life_cycle.readers.add(reader(api, call), wanted) else {
        let detail = "the limit of event streams is reached";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        return Err(problem.fix("close another stream, or subscribe to $SYS/events/# over MQTT"));
    };
    life_cycle.note_readers();
    let headers = [(CONTENT_TYPE, MEDIA_TYPE), (CACHE_CONTROL, "no-store")];
    let mut response = (headers, web::stream(queue)).into_response();
    response.extensions_mut().insert(lasting);
    Ok(response)
}

/// Reads a stream for as long as its proof is accepted.
pub(crate) fn reader(api: &Api, call: &Call) -> Caller {
    let (authenticator, proof) = (api.authenticator.clone(), call.proof.clone());
    let may_read = move || {
        // A node that passes a call on ends it when its caller may read no more.
        proof.as_ref().is_none_or(|proof| authenticator.still_accepts(proof))
    };
    Caller { name: call.caller.name.clone(), may_read: Box::new(may_read) }
}
