//! What operators do to the running broker: reload its files, change its log level.

use std::time::Duration;

use base::moment;
use web::axum::http::StatusCode;

use super::call::Call;
use super::log_lines::level_of;
use super::problem::Problem;
use super::route::Outcome;
use super::schema::record;
use super::{Api, json};
use crate::logging::{LevelChange, Logging};
use crate::run::Reloaded;

record! {
    /// The result of a reload.
    ReloadResult {
        /// False: a part was refused.
        complete: bool,
        /// The parts, in the order of the reload.
        parts: Vec<ReloadPart>,
        /// Settings that were set while running, and whose configured value is in force again: the
        /// configuration has another value for them than before.
        taken_back: Vec<String>,
    }
}

record! {
    /// A part of the configuration that was reloaded, or refused.
    ReloadPart {
        /// Its name, such as `passwords and keys`.
        name: String,
        /// Whether the new one is in use.
        reloaded: bool,
        /// The reason why the old one stays in use.
        error: Option<String>,
    }
}

record! {
    /// The log level.
    LogLevelState {
        /// The level in force: error, warn, info, debug or trace.
        level: String,
        /// The level of the configuration, which a restart brings back.
        configured: String,
        /// When the configured level returns; null: not before a restart.
        until: Option<String>,
    }
}

record! {
    /// A log level to set.
    NewLogLevel {
        /// The level: error, warn, info, debug or trace.
        level: String,
        /// Seconds until the configured level returns. Without this it stays until a restart.
        for_secs: Option<u64>,
    }
}

/// How long a caller waits for a reload.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time that a level may have an end in: a year.
const LEVEL_SECS_MAX: u64 = 366 * 86_400;

pub(crate) async fn reload(api: &Api) -> Outcome {
    let reloaded = reloaded(api).await?;
    let parts: Vec<ReloadPart> = reloaded
        .parts
        .into_iter()
        .map(|part| ReloadPart {
            name: part.name,
            reloaded: part.error.is_none(),
            error: part.error,
        })
        .collect();
    json(&ReloadResult {
        complete: parts.iter().all(|part| part.reloaded),
        parts,
        taken_back: reloaded.taken_back,
    })
}

/// Reloads as SIGHUP does, and says what came of it.
pub(crate) async fn reloaded(api: &Api) -> Result<Reloaded, Problem> {
    let given = api.facts.reloads.ask().map_err(|error| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot reload: {error}"))
    })?;
    match tokio::time::timeout(RELOAD_TIMEOUT, given).await {
        Ok(Ok(reloaded)) => Ok(reloaded),
        Ok(Err(_)) => {
            let detail = "the broker is starting or stopping";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
        }
        Err(_) => {
            let detail = "the reload takes longer than 30 s, and goes on";
            let problem = Problem::new(StatusCode::GATEWAY_TIMEOUT, detail);
            Err(problem.fix("the log has its result"))
        }
    }
}

/// Reloads for the sake of one part, after a change of its file.
pub(crate) async fn reloaded_part(api: &Api, name: &str) -> Result<(), Problem> {
    let reloaded = reloaded(api).await?;
    let part = reloaded.parts.into_iter().find(|part| part.name == name);
    match part.and_then(|part| part.error) {
        None => Ok(()),
        Some(error) => {
            let detail = format!("the file is changed, but not reloaded: {error}");
            let fix = "correct the file: `quelea serve --check-config` names its faults";
            Err(Problem::new(StatusCode::CONFLICT, detail).fix(fix))
        }
    }
}

pub(crate) fn log_level(api: &Api) -> Outcome {
    let change = Logging::level().unwrap_or(LevelChange {
        level: api.facts.live.get(|config| config.log.level),
        until_secs: None,
    });
    json(&shown(api, change))
}

pub(crate) fn set_log_level(api: &Api, call: &Call) -> Outcome {
    let NewLogLevel { level, for_secs } = call.body()?;
    let level = level_of(&level).map_err(|detail| Problem::bad("body, level", detail))?;
    if for_secs.is_some_and(|secs| !(1..=LEVEL_SECS_MAX).contains(&secs)) {
        let detail = format!("must be between 1 and {LEVEL_SECS_MAX}");
        return Err(Problem::bad("body, for_secs", detail));
    }
    let until_secs = for_secs.map(|secs| api.facts.clock.wall_secs() + secs);
    let change = LevelChange { level, until_secs };
    Logging::set_level(change).map_err(|error| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot change the level: {error}"))
    })?;
    json(&shown(api, change))
}

fn shown(api: &Api, change: LevelChange) -> LogLevelState {
    LogLevelState {
        level: change.level.as_str().to_owned(),
        configured: api.facts.live.get(|config| config.log.level).as_str().to_owned(),
        until: change.until_secs.map(moment::text_of),
    }
}
