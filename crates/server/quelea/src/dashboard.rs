//! The dashboard: static files that the browser gets from the broker. Everything they show and do
//! goes through the management API, with the rights of the user that logged in.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use web::axum::Router;
use web::axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use web::axum::http::{HeaderMap, StatusCode};
use web::axum::response::{IntoResponse as _, Response};
use web::axum::routing::get;

/// The files at `/` and below `/dashboard/`.
pub(crate) fn router() -> Router {
    let mut router = Router::new();
    for file in FILES {
        let tag = tag_of(file.bytes);
        let path = match file.path {
            "index.html" => "/".to_owned(),
            path => format!("/dashboard/{path}"),
        };
        let answer = move |headers: HeaderMap| async move { answer(file, &tag, &headers) };
        router = router.route(&path, get(answer));
    }
    router
}

/// A file of the directory `dashboard`.
struct File {
    path: &'static str,
    bytes: &'static [u8],
}

fn answer(file: &File, tag: &str, headers: &HeaderMap) -> Response {
    // Each start may bring other files, so a browser asks whether it has the present ones.
    let same = [(ETAG, tag), (CACHE_CONTROL, "no-cache")];
    let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag)) {
        return (StatusCode::NOT_MODIFIED, same).into_response();
    }
    let kind = match file.path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    };
    let safety = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CONTENT_TYPE, kind),
    ];
    (same, safety, file.bytes).into_response()
}

/// Nothing but our files runs. Connections to WebSocket listeners are for the page that publishes
/// and subscribes; they have another port, and often another host.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self' ws: wss:; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

fn tag_of(bytes: &[u8]) -> String {
    let mut tag = String::from("\"");
    for byte in &Sha256::digest(bytes)[..16] {
        let _ = write!(tag, "{byte:02x}");
    }
    tag + "\""
}

macro_rules! files {
    ($($path:literal,)+) => {
        &[$(File { path: $path, bytes: include_bytes!(concat!("../dashboard/", $path)) },)+]
    };
}

/// All that a browser may get.
const FILES: &[File] = files! {
    "index.html",
    "api.js",
    "app.js",
    "chart.js",
    "format.js",
    "icon.svg",
    "list.js",
    "live.js",
    "pages/alarms.js",
    "pages/audit.js",
    "pages/backup.js",
    "pages/bans.js",
    "pages/bridges.js",
    "pages/client.js",
    "pages/clients.js",
    "pages/cluster.js",
    "pages/events.js",
    "pages/groups.js",
    "pages/limits.js",
    "pages/listeners.js",
    "pages/login.js",
    "pages/loglines.js",
    "pages/logs.js",
    "pages/memory.js",
    "pages/messages.js",
    "pages/namespaces.js",
    "pages/overview.js",
    "pages/permissions.js",
    "pages/routing.js",
    "pages/rules.js",
    "pages/settings.js",
    "pages/subscriptions.js",
    "pages/topics.js",
    "pages/trace.js",
    "pages/users.js",
    "style.css",
    "theme.js",
    "ui.js",
    "vendor/hooks.js",
    "vendor/htm.js",
    "vendor/mqtt.js",
    "vendor/preact.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn directory() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard"))
    }

    fn names(below: &str) -> Vec<String> {
        let entries = fs::read_dir(directory().join(below)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let names = paths.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        names.map(|name| format!("{below}{name}")).collect()
    }

    #[test]
    fn every_file_is_served() {
        let mut found: Vec<String> =
            ["", "pages/", "vendor/"].into_iter().flat_map(names).collect();
        found.retain(|name| [".html", ".css", ".js", ".svg"].iter().any(|end| name.ends_with(end)));
        found.sort();
        let mut served: Vec<_> = FILES.iter().map(|file| file.path).collect();
        served.sort_unstable();
        assert_eq!(found, served);
    }

    /// `vendor.py` writes the files and the sums; whoever changes one by hand changes both.
    #[test]
    fn files_of_others_are_as_they_were_fetched() {
        let sums = fs::read_to_string(directory().join("vendor/SHA256SUMS")).unwrap();
        let sums: BTreeMap<String, &str> = sums
            .lines()
            .map(|line| line.split_once("  ").unwrap())
            .map(|(sum, name)| (format!("vendor/{name}"), sum))
            .collect();
        let mut found = names("vendor/");
        found.retain(|name| !name.ends_with("SHA256SUMS"));
        assert_eq!(found.len(), sums.len(), "{found:?}");
        for name in found {
            let bytes = fs::read(directory().join(&name)).unwrap();
            let sum: String = Sha256::digest(bytes).iter().map(|it| format!("{it:02x}")).collect();
            assert_eq!(sums.get(&name), Some(&&*sum), "{name}: run dashboard/vendor.py");
        }
    }

    /// The policy forbids it; a browser would only say so on its console.
    #[test]
    fn own_files_load_nothing_from_elsewhere_and_have_no_inline_code() {
        let is_own =
            |file: &&File| !file.path.starts_with("vendor/") && !file.path.ends_with("svg");
        for file in FILES.iter().filter(is_own) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            for wrong in ["http://", "https://", "innerHTML", "eval(", "<style", " style=\""] {
                let line = text.lines().find(|line| line.contains(wrong));
                assert_eq!(line, None, "{}: {wrong}", file.path);
            }
            assert!(text.lines().count() <= 800, "{} is too long", file.path);
        }
    }

    #[test]
    fn a_browser_that_has_a_file_does_not_get_it_again() {
        let file = &FILES[0];
        let tag = tag_of(file.bytes);
        let ask = |known: Option<&str>| {
            let mut headers = HeaderMap::new();
            known.map(|known| headers.insert(IF_NONE_MATCH, known.parse().unwrap()));
            answer(file, &tag, &headers)
        };
        let first = ask(None);
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[ETAG], *tag);
        assert!(first.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().contains("'none'"));
        assert_eq!(ask(Some("\"x\"")).status(), StatusCode::OK);
        let again = ask(Some(&format!("\"x\", {tag}")));
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(again.headers()[ETAG], *tag);
    }
}
