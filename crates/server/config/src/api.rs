//! The management API: where it listens, and who may ask.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::keys::{Api, ClientAuth, Server};
use super::namespaces::{self, Namespace};
use super::source::{Problem, Settings};
use super::tls::{self, TlsConfig};
use super::values;

/// The API, which is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiConfig {
    pub listen: ApiAddress,
    pub token_file: PathBuf,
    pub password_file: Option<PathBuf>,
    /// `*`: each user of the file.
    pub viewers: Vec<String>,
    pub operators: Vec<String>,
    pub admins: Vec<String>,
    /// Of an address of its own. `None`: in clear text.
    pub tls: Option<TlsConfig>,
    pub certificates: CertificateRoles,
}

/// Common names of client certificates, by the role that they give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateRoles {
    /// `*`: each certificate.
    pub viewers: Vec<String>,
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

/// TLS of HTTP, and the API. `http`: the address of HTTP. The outer `None` is a mistake of this
/// crate.
pub(super) fn lower_with_tls(
    (http, namespaces): (Option<SocketAddr>, &[Namespace]),
    server: &Server,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Option<(Option<TlsConfig>, Option<ApiConfig>)> {
    let http_tls = tls::of_section("http.tls", settings, problems)?;
    let api = Api::lower(values(settings, Api::SECTION, "api"))?;
    let api = lower(api, (http, http_tls.as_ref()), &server.data_dir, settings, problems)?;
    namespaces::check_api_users(namespaces, api.as_ref(), settings, problems);
    Some((http_tls, api))
}

/// `http`: the address of HTTP, and its TLS. The outer `None` is a mistake of this crate.
fn lower(
    api: Api,
    (http, http_tls): (Option<SocketAddr>, Option<&TlsConfig>),
    data_dir: &Path,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Option<Option<ApiConfig>> {
    let tls = tls::of_section(TLS, settings, problems)?;
    let mut problem = |key: &str, detail: String| {
        problems.push(Problem { place: settings.place(key), key: key.into(), detail });
    };
    let (listen, address) = match (api.listen.as_str(), http) {
        ("off", _) => return Some(None),
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
    let is_shared = listen == ApiAddress::Http;
    if is_shared && settings.has_section(TLS) {
        let detail = "the API is at http.listen, whose TLS is [http.tls]; write the keys there";
        problem(TLS, detail.into());
    }
    let own_tls = if is_shared { http_tls } else { tls.as_ref() };
    check_certificates(&api, own_tls, &mut problem);
    if let Some(address) = address.filter(|address| !address.ip().is_loopback())
        && !api.allow_remote
        && own_tls.is_none()
    {
        let section = if is_shared { "http.tls" } else { TLS };
        let detail = format!(
            "{address} can be reached from other machines, and its connections are not encrypted; use \
             127.0.0.1, set certificate and key under [{section}], or set allow_remote = true"
        );
        problem("api.listen", detail);
    }
    check_users(&api, &mut problem);
    Some(Some(ApiConfig {
        listen,
        token_file: api.token_file.unwrap_or_else(|| data_dir.join(TOKEN_FILE)),
        password_file: api.password_file,
        viewers: api.viewers,
        operators: api.operators,
        admins: api.admins,
        tls: tls.filter(|_| !is_shared),
        certificates: CertificateRoles {
            viewers: api.certificate_viewers,
            operators: api.certificate_operators,
            admins: api.certificate_admins,
        },
    }))
}

fn check_users(api: &Api, problem: &mut dyn FnMut(&str, String)) {
    if api.password_file.is_none() {
        for (key, names) in [("api.operators", &api.operators), ("api.admins", &api.admins)] {
            if let Some(name) = names.first() {
                problem(key, format!("'{name}' has no password; set password_file under [api]"));
            }
        }
    }
    let lists = [("operators", &api.operators), ("admins", &api.admins)];
    for (key, names, others) in
        [("api.viewers", &api.viewers, &lists[..]), ("api.operators", &api.operators, &lists[1..])]
    {
        let found = others.iter().find_map(|(other, own)| {
            let name = names.iter().find(|name| own.contains(name))?;
            Some((name, other))
        });
        if let Some((name, other)) = found {
            problem(key, format!("'{name}' is in `{other}` as well: use one of the lists"));
        }
    }
}

/// A name that gives a role has to be proved, and gives one role only.
fn check_certificates(api: &Api, tls: Option<&TlsConfig>, problem: &mut dyn FnMut(&str, String)) {
    let lists = [
        ("api.certificate_viewers", &api.certificate_viewers),
        ("api.certificate_operators", &api.certificate_operators),
        ("api.certificate_admins", &api.certificate_admins),
    ];
    let asks = tls.is_some_and(|tls| tls.client_auth != ClientAuth::None);
    for (place, (key, names)) in lists.into_iter().enumerate() {
        if !names.is_empty() && !asks {
            let detail = "needs client_ca, and client_auth = \"optional\" or \"require\", under \
                          [http.tls], or [api.tls] if the API has its own address";
            problem(key, detail.into());
            return;
        }
        let is_wrong = |name: &&String| name.is_empty() || *name == "*" && place > 0;
        if let Some(wrong) = names.iter().find(is_wrong) {
            problem(key, format!("must be common names of certificates, got '{wrong}'"));
        }
        let others = lists[..place].iter().flat_map(|(_, others)| others.iter());
        if let Some(name) = others.into_iter().find(|name| names.contains(name)) {
            problem(key, format!("'{name}' is in two lists: use one of them"));
        }
    }
}

const TLS: &str = "api.tls";
