//! Users of the password file, which is changed whole, and reloaded before a call is answered.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use identity::auth::password_changes::{ChangeError, NewSecret, delete_user, put_user};
use identity::auth::passwords::PasswordFile;
use web::axum::http::StatusCode;

use super::call::Call;
use super::paging::bad_cursor;
use super::problem::Problem;
use super::route::Outcome;
use super::schema::{Rows, record};
use super::{Api, json, operate, registry};

record! {
    /// A user of the password file.
    User {
        /// The username.
        username: String,
        /// It has credentials for SCRAM-SHA-256.
        scram: bool,
    }
}

record! {
    /// A password to set.
    NewPassword {
        /// The password.
        password: String,
        /// Also store credentials for SCRAM-SHA-256. Default: false.
        scram: Option<bool>,
    }
}

/// By their names.
pub(crate) async fn list(api: &Api, call: &Call) -> Outcome {
    let path = file(api)?;
    let after = call.text("cursor").map(read_cursor).transpose()?;
    let loaded = tokio::task::spawn_blocking(move || PasswordFile::load(&path)).await;
    let users = loaded.map_err(|_| failed())?.map_err(|error| unusable(error.to_string()))?;
    let mut names: Vec<(&str, bool)> = users.names().collect();
    names.sort_unstable();
    let behind = names.iter().filter(|(name, _)| after.as_deref().is_none_or(|it| *name > it));
    let mut rows: Vec<User> = behind
        .take(call.limit() + 1)
        .map(|(name, scram)| User { username: (*name).to_owned(), scram: *scram })
        .collect();
    let has_more = rows.len() > call.limit();
    rows.truncate(call.limit());
    let last = rows.last().filter(|_| has_more);
    let cursor = last.map(|user| BASE64_URL_SAFE_NO_PAD.encode(&user.username));
    json(&Rows { items: rows, cursor })
}

pub(crate) async fn put(api: &Arc<Api>, call: &Call) -> Outcome {
    let NewPassword { password, scram } = call.body()?;
    let (path, username) = (file(api)?, call.needed("username").to_owned());
    change(api, move || {
        let new = NewSecret { password: password.as_bytes(), scram: scram.unwrap_or_default() };
        put_user(&path, &username, &new)
    })
    .await
}

pub(crate) async fn delete(api: &Arc<Api>, call: &Call) -> Outcome {
    let (path, username) = (file(api)?, call.needed("username").to_owned());
    change(api, move || delete_user(&path, &username)).await
}

/// One change at a time: two that read the same file would lose one of them.
async fn change(
    api: &Arc<Api>,
    change: impl FnOnce() -> Result<(), ChangeError> + Send + 'static,
) -> Outcome {
    let _alone = api.files.lock().await;
    tokio::task::spawn_blocking(change).await.map_err(|_| failed())??;
    operate::reloaded_part(api, PASSWORDS).await.map(|()| None)
}

/// The part of a reload that has the password file.
const PASSWORDS: &str = "passwords and keys";

fn file(api: &Api) -> Result<PathBuf, Problem> {
    api.facts.config.auth.password_file.clone().ok_or_else(|| {
        let detail = "no password file is configured";
        Problem::new(StatusCode::CONFLICT, detail).fix("set auth.password_file, and restart")
    })
}

fn read_cursor(text: &str) -> Result<String, Problem> {
    let name = BASE64_URL_SAFE_NO_PAD.decode(text).ok();
    name.and_then(|name| String::from_utf8(name).ok()).ok_or_else(|| bad_cursor(text))
}

fn unusable(detail: impl Into<String>) -> Problem {
    let fix = "correct the file: `quelea check` names its faults";
    Problem::new(StatusCode::CONFLICT, detail).fix(fix)
}

fn failed() -> Problem {
    let detail = "internal error: a thread of the broker failed";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        let detail = error.to_string();
        match error {
            ChangeError::Username(_) => Self::bad("path parameter username", detail),
            ChangeError::Empty => Self::bad("body, password", detail),
            ChangeError::Unknown { .. } => Self::new(StatusCode::NOT_FOUND, detail),
            ChangeError::Line { .. } => unusable(detail),
            ChangeError::Read { source, .. } => registry::not_replaced(&source.into(), detail),
            ChangeError::Write { source, .. } => registry::not_replaced(&source, detail),
        }
    }
}
