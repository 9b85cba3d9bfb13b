//! The management API: where it listens, and who may ask.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::keys::Api;
use super::source::{Problem, Settings};

/// The API, which is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiConfig {
    pub listen: ApiAddress,
    pub token_file: PathBuf,
    pub password_file: Option<PathBuf>,
    pub operators: Vec<String>,
    pub admins: Vec<String>,
}

/// Where the API is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiAddress {
    /// At that of metrics and probes.
    Http,
    Own(SocketAddr),
}

/// The file with the token, where none is named, in the data directory.
pub const TOKEN_FILE: &str = "api.token";

/// All routes of the management API are below it.
pub const API_PREFIX: &str = "/api/v1";

pub(super) fn lower(
    api: Api,
    http: Option<SocketAddr>,
    data_dir: &Path,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Option<ApiConfig> {
    let mut problem = |key: &str, detail: String| {
        problems.push(Problem { place: settings.place(key), key: key.into(), detail });
    };
    let (listen, address) = match (api.listen.as_str(), http) {
        ("off", _) => return None,
        ("http", Some(address)) => (ApiAddress::Http, Some(address)),
        ("http", None) => {
            let detail = "http.listen is \"off\"; write an address and port for the API";
            problem("api.listen", detail.into());
            (ApiAddress::Http, None)
        }
        (text, _) => match text.parse::<SocketAddr>() {
            Ok(address) if Some(address) == http && address.port() != 0 => {
                let detail = format!("'{text}' is that of http.listen; write \"http\" to share it");
                problem("api.listen", detail);
                (ApiAddress::Http, None)
            }
            Ok(address) => (ApiAddress::Own(address), Some(address)),
            Err(_) => {
                let detail = format!(
                    "must be an address and port such as \"127.0.0.1:9884\", \"http\" or \
                    \"off\", got '{text}'"
                );
                problem("api.listen", detail);
                (ApiAddress::Http, None)
            }
        },
    };
    if let Some(address) = address.filter(|address| !address.ip().is_loopback())
        && !api.allow_remote
    {
        let detail = format!(
            "{address} can be reached from other machines, and its connections are not encrypted; use \
             127.0.0.1, or set allow_remote = true"
        );
        problem("api.listen", detail);
    }
    if api.password_file.is_none() {
        for (key, names) in [("api.operators", &api.operators), ("api.admins", &api.admins)] {
            if let Some(name) = names.first() {
                problem(key, format!("'{name}' has no password; set password_file under [api]"));
            }
        }
    }
    let both = api.operators.iter().find(|name| api.admins.contains(name));
    if let Some(name) = both {
        problem(
            "api.operators",
            format!(
                "'{name}' is in `admins` as well: use one of the two \
        lists"
            ),
        );
    }
    Some(ApiConfig {
        listen,
        token_file: api.token_file.unwrap_or_else(|| data_dir.join(TOKEN_FILE)),
        password_file: api.password_file,
        operators: api.operators,
        admins: api.admins,
    })
}
