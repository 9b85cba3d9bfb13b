//! Streams of events and of packets of all cells.
//!
//! Each cell has a stream of its own, and they are passed on event by event. A cell that moves to
//! another node is asked again there: what it reports meanwhile is lost for the reader.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use web::Lasting;
use web::axum::body::{Body, Bytes};
use web::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use web::axum::response::{IntoResponse as _, Response};

use super::Api;
use super::asked::Asked;
use super::call::Call;
use super::problem::Problem;
use super::route::{Route, Stream};
use crate::run::Calls;

/// Parts that wait for the reader. Each is a few events.
const PARTS_MAX: usize = 64;

/// How long after the end of its stream a cell is asked again.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn begin(
    api: &Arc<Api>,
    calls: &Arc<Calls>,
    (route, stream): (&'static Route, &'static Stream),
    call: &Call,
) -> Result<Response, Problem> {
    let asked = Asked::new(route, call);
    // What it lacks is said by the first stream: that of the node itself.
    let mut own = (stream.begin)(api.clone(), call.clone()).await?;
    let lasting = own.extensions_mut().remove::<Lasting>();
    let (parts, queue) = mpsc::channel(PARTS_MAX);
    tokio::spawn(pass_on_own(own.into_body(), parts.clone()));
    let mut begun = Vec::new();
    for cell in 0..calls.cells() {
        // A reader that has its answer gets all that follows.
        let first = calls.ask_stream(cell, &asked).await.ok();
        if let Some(Err(problem)) = first {
            return Err(problem);
        }
        begun.push((cell, first.and_then(Result::ok)));
    }
    for (cell, first) in begun {
        let (calls, asked, parts) = (calls.clone(), asked.clone(), parts.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = pass_on(&calls, (cell, first), &asked, &parts) => {}
                () = parts.closed() => {}
            }
        });
    }
    let headers = [(CONTENT_TYPE, stream.media_type), (CACHE_CONTROL, "no-store")];
    let mut response = (headers, web::stream(queue)).into_response();
    if let Some(lasting) = lasting {
        response.extensions_mut().insert(lasting);
    }
    Ok(response)
}

/// Its end is that of all: the caller may read no more.
async fn pass_on_own(body: Body, parts: mpsc::Sender<Bytes>) {
    let mut body = body.into_data_stream();
    while let Some(Ok(part)) = body.next().await {
        if parts.send(part).await.is_err() {
            return;
        }
    }
}

async fn pass_on(
    calls: &Calls,
    (cell, mut first): (u16, Option<mpsc::Receiver<Bytes>>),
    asked: &Asked,
    parts: &mpsc::Sender<Bytes>,
) {
    loop {
        let next = match first.take() {
            Some(stream) => Some(stream),
            None => calls.ask_stream(cell, asked).await.ok().and_then(Result::ok),
        };
        if let Some(mut stream) = next {
            while let Some(part) = stream.recv().await {
                if parts.send(part).await.is_err() {
                    return;
                }
            }
        }
        let note = format!(": cell {cell} does not answer\n\n");
        if parts.send(note.into()).await.is_err() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}
