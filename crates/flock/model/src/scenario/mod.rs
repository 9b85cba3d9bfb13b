//! From a scenario file to a [`Scenario`]: the native TOML form, and the entry for every form.
//!
//! [`load`] takes a file (`.toml`, or `.xml` for HiveMQ Swarm); [`parse`] takes a text. Both end in
//! [`check::check`], so that what they return can run. Errors carry file, line and column, show the
//! line, and suggest a fix where there is a likely one.

pub mod check;
pub mod credentials;
mod error;
mod format;
mod lower;
mod params;
pub mod units;
mod v5_keys;
pub mod words;

use std::collections::BTreeMap;
use std::path::Path;

pub use error::{Location, ScenarioError, did_you_mean};
pub use format::{About, Part, Published};

use crate::model::{Command, Payload, Scenario};

/// A scenario with what there is to tell about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub scenario: Scenario,
    pub about: About,
    pub published: Vec<Published>,
    /// Options of `flock run` with which a machine of two cores can carry it; `None` if it can as
    /// it is.
    pub laptop: Option<String>,
    /// The text as it was interpreted (parameters filled in).
    pub source: String,
    /// Its parameters, and the values they had.
    pub params: BTreeMap<String, String>,
    /// Whether a file of the user's says where the broker is.
    pub names_broker: bool,
}

/// Which of a file's variants to take, and which parameters to set.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// A variant's id; `None` takes the file as it is.
    pub variant: Option<String>,
    pub params: BTreeMap<String, String>,
    /// What the payload generators of a Swarm scenario are replaced with.
    pub payload: Option<Payload>,
}

/// Reads the file a Swarm scenario is in, next to the file that names it.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Loads `path`, by its ending: `.xml` is HiveMQ Swarm's format, everything else TOML.
pub fn load(path: &Path, choice: &Choice) -> Result<Loaded, ScenarioError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| ScenarioError::new(&file, format!("cannot be read: {error}")))?;
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    parse_any(&file, &text, choice, &read)
}

/// Parses either form, by the ending of `file`.
pub fn parse_any(
    file: &str,
    text: &str,
    choice: &Choice,
    read: ReadFile<'_>,
) -> Result<Loaded, ScenarioError> {
    let ending = Path::new(file).extension();
    if !ending.is_some_and(|ending| ending.eq_ignore_ascii_case("xml")) {
        return parse(file, text, choice, read);
    }
    if let Some(name) = choice.params.keys().next() {
        return Err(ScenarioError::new(file, format!("a Swarm file has no parameter `{name}`")));
    }
    let scenario = crate::swarm::parse(file, text, choice.payload.as_ref())?;
    let about = About {
        family: "HiveMQ Swarm".to_owned(),
        summary: scenario.description.clone(),
        ..About::default()
    };
    let source = text.to_owned();
    let (published, params) = (Vec::new(), BTreeMap::new());
    let names_broker = true;
    Ok(Loaded { scenario, about, published, laptop: None, source, params, names_broker })
}

/// Parses the native form. `file` is for messages, `read` opens files that the text names.
pub fn parse(
    file: &str,
    text: &str,
    choice: &Choice,
    read: ReadFile<'_>,
) -> Result<Loaded, ScenarioError> {
    let filled = params::fill(file, text, choice)?;
    let parsed: format::File = from_toml(file, &filled.text)?;
    let mut scenario = match &parsed.swarm {
        Some(name) => swarm_body(file, &filled.text, &parsed, (name, &choice.payload), read)?,
        None if choice.payload.is_some() => {
            let what =
                "no Swarm scenario, and has no payload generator that --payload could replace";
            return Err(ScenarioError::new(file, what));
        }
        None => lower::lower(file, &filled.text, &parsed, read)?,
    };
    let names_broker = parsed.swarm.is_some() || !parsed.brokers.is_empty();
    let (mut published, mut laptop) = (parsed.published, parsed.laptop);
    if let Some(variant) = filled.variant {
        scenario.id = variant.id;
        scenario.title = variant.title.unwrap_or(scenario.title);
        published = variant.published;
        laptop = variant.laptop.or(laptop);
    }
    let payload_bytes = payload_bytes(&scenario);
    published.iter_mut().for_each(|figure| figure.payload_bytes = payload_bytes);
    Ok(Loaded {
        scenario,
        about: parsed.about,
        published,
        laptop,
        source: filled.text,
        params: filled.params,
        names_broker,
    })
}

/// Of a message, where all have the same.
fn payload_bytes(scenario: &Scenario) -> Option<f64> {
    let mut sizes = Vec::new();
    scenario.each_command(&mut |_, _, command| {
        if let Command::Publish(publish) = command {
            sizes.extend([publish.payload.bytes_min(), publish.payload.bytes_max()]);
        }
    });
    sizes.dedup();
    match sizes[..] {
        [only] => Some(f64::from(only)),
        _ => None,
    }
}

/// The ids that a file can be loaded as: its own, if it has no variants, or theirs.
pub fn ids(file: &str, text: &str) -> Result<Vec<String>, ScenarioError> {
    params::ids(file, text)
}

fn swarm_body(
    file: &str,
    text: &str,
    parsed: &format::File,
    (name, payload): (&toml::Spanned<String>, &Option<Payload>),
    read: ReadFile<'_>,
) -> Result<Scenario, ScenarioError> {
    let xml = read(name.get_ref())
        .map_err(|error| ScenarioError::new(file, error).at(text, name.span()))?;
    if let Some(key) = own_key(text) {
        let message = format!("`{key}` and `swarm` exclude each other");
        return Err(ScenarioError::new(file, message).at(text, name.span()));
    }
    let mut scenario = crate::swarm::parse(name.get_ref(), &xml, payload.as_ref())?;
    scenario.id = parsed.id.get_ref().clone();
    scenario.title.clone_from(&parsed.title);
    let about = [parsed.about.summary.as_str(), scenario.description.as_str()];
    scenario.description = about.join(" ").trim().to_owned();
    Ok(scenario)
}

/// A key that a file with stages of its own has, and one that takes them from a Swarm file has not.
fn own_key(text: &str) -> Option<String> {
    let table: toml::Table = text.parse().ok()?;
    table.keys().find(|key| !BESIDE_SWARM.contains(&key.as_str())).cloned()
}

/// Keys of a file whose stages are in a Swarm file.
const BESIDE_SWARM: [&str; 8] =
    ["id", "title", "about", "params", "variant", "swarm", "published", "laptop"];

/// Parses TOML; an unknown key or name comes back with the nearest known one.
fn from_toml<T: serde::de::DeserializeOwned>(file: &str, text: &str) -> Result<T, ScenarioError> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().trim().to_owned();
        let (message, hint) = suggest(&message);
        let made = ScenarioError::new(file, message).hint(hint);
        match error.span() {
            Some(span) => made.at(text, span),
            None => made,
        }
    })
}

/// Serde's "unknown field `cout`, expected one of `count`, `id`" in our words, with a hint.
fn suggest(message: &str) -> (String, Option<String>) {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let what = match () {
        () if message.starts_with("unknown field") => "key",
        () if message.starts_with("unknown variant") => "name",
        () => return (message.to_owned(), None),
    };
    let Some((wrong, known)) = names.split_first() else { return (message.to_owned(), None) };
    let hint = did_you_mean(wrong, known.iter().copied())
        .unwrap_or_else(|| format!("valid names: {}", known.join(", ")));
    (format!("unknown {what} `{wrong}`"), Some(hint))
}

#[cfg(test)]
mod tests;
