//! The configuration in force, and what of it changes while the broker runs.

use config::print;
use web::axum::http::StatusCode;

use super::call::Call;
use super::problem::Problem;
use super::route::Outcome;
use super::schema::{Rows, record};
use super::{Api, json};
use crate::run::SetError;

record! {
    /// A value of the configuration in force.
    Setting {
        /// Section and key.
        key: String,
        /// The value as TOML.
        value: String,
        /// The source: where it was set, or how it was derived.
        origin: String,
        /// The kind of source.
        source: String,
        /// The default as TOML; null: not set.
        default: Option<String>,
        /// The unit of a number: count, bytes or seconds; null for other values.
        unit: Option<String>,
        /// The values that the key accepts.
        allowed: String,
        /// Whether `PUT /settings/{key}` changes it. Other keys need a restart.
        changes_while_running: bool,
    }
}

record! {
    /// A value to set.
    NewSetting {
        /// The value as text, as in an environment variable: `5000`, `10m`, `debug`.
        value: String,
    }
}

pub(crate) fn list(api: &Api) -> Outcome {
    let loaded = api.facts.live.in_force();
    let rows = print::rows(&loaded.settings, &loaded.derived);
    json(&Rows { items: rows.into_iter().map(shown).collect::<Vec<_>>(), cursor: None })
}

pub(crate) fn set(api: &Api, call: &Call) -> Outcome {
    let NewSetting { value } = call.body()?;
    change(api, call.needed("key"), Some(value))
}

pub(crate) fn reset(api: &Api, call: &Call) -> Outcome {
    change(api, call.needed("key"), None)
}

fn change(api: &Api, key: &str, value: Option<String>) -> Outcome {
    api.facts.live.set(key, value).map_err(|error| match error {
        SetError::UnknownKey => Problem::missing("setting", key)
            .fix("GET /settings lists the keys; listeners have none"),
        SetError::NeedsRestart => {
            let detail = format!("'{key}' does not change while the broker runs");
            let fix = "change the configuration and restart; GET /settings shows which keys change";
            Problem::new(StatusCode::CONFLICT, detail).at("path parameter key").fix(fix)
        }
        SetError::Refused(error) => {
            let details: Vec<&str> =
                error.problems.iter().map(|problem| problem.detail.as_str()).collect();
            Problem::bad("body, value", details.join("; "))
                .fix("GET /settings has the allowed values")
        }
    })?;
    let loaded = api.facts.live.in_force();
    let mut rows = print::rows(&loaded.settings, &loaded.derived).into_iter();
    match rows.find(|row| row.key == key) {
        Some(row) => json(&shown(row)),
        None => Err(Problem::missing("setting", key)),
    }
}

fn shown(row: print::Row) -> Setting {
    Setting {
        key: row.key,
        value: row.value,
        origin: row.origin,
        source: row.source.to_owned(),
        default: row.default,
        unit: row.unit.map(str::to_owned),
        allowed: row.allowed,
        changes_while_running: row.changes_while_running,
    }
}
