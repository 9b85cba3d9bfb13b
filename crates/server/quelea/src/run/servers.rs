//! The HTTP servers of a broker: metrics and probes, and the API.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use net::{TlsContext, TlsOptions};
use web::axum::Router;

use super::listen;
use super::unwritten::Unwritten;
use crate::api::{Api, ApiAuthenticator, CALLS_MAX, Owner};
use crate::dashboard;
use crate::http;
use config::{ApiAddress, Config, TlsConfig};

/// For metrics and probes, and for the API if it has an address of its own. Dropping it ends them.
#[derive(Default)]
pub(super) struct HttpServers {
    pages: Option<web::Server>,
    api: Option<web::Server>,
    pub(super) api_authenticator: Option<Arc<ApiAuthenticator>>,
    /// What answers, if the API is on.
    pub(super) api_of_node: Option<Arc<Api>>,
    /// Of the API, with where the API is.
    pub(super) token_file: Option<(PathBuf, String)>,
    /// By the key of the address.
    pub(super) tls: Vec<(String, Arc<TlsContext>)>,
}

impl HttpServers {
    /// Starts those that the configuration asks for. `routes`: of the API.
    ///
    /// # Errors
    ///
    /// When an address cannot be listened on, or a certificate cannot be used.
    pub(super) fn start(
        config: &Config,
        pages: Router,
        routes: Option<Router>,
    ) -> anyhow::Result<Self> {
        let mut routes = routes.map(|routes| routes.merge(dashboard::router()));
        let mut servers = Self::default();
        // Calls that change files block a thread each: metrics are written on a further one.
        let blocking_threads_max = CALLS_MAX + 1;
        let keepalive_secs = listen::keepalive_secs(config);
        let limits = web::Limits { blocking_threads_max, keepalive_secs, ..web::Limits::default() };
        let guard = |address: SocketAddr, routes| match address.ip().is_loopback() {
            true => http::guarded(routes, &config.http_hosts),
            false => routes,
        };
        if let Some(api) = &config.api
            && let ApiAddress::Own(address) = api.listen
            && let Some(routes) = routes.take()
        {
            let tls = servers.load_tls("api.listen", api.tls.as_ref())?;
            let routes = guard(address, routes);
            let server = web::Server::start_with(address, tls, limits, routes);
            let fault = || format!("cannot listen on {address}; choose another api.listen");
            servers.api = Some(server.with_context(fault)?);
        }
        if let Some(address) = config.http {
            let router = match routes {
                Some(routes) => pages.merge(routes),
                None => pages,
            };
            let tls = servers.load_tls("http.listen", config.http_tls.as_ref())?;
            let router = guard(address, router);
            let server = web::Server::start_with(address, tls, limits, router);
            servers.pages = Some(server.with_context(|| listen::http_fault(address))?);
        }
        Ok(servers)
    }

    fn load_tls(
        &mut self,
        name: &str,
        tls: Option<&TlsConfig>,
    ) -> anyhow::Result<Option<Arc<TlsContext>>> {
        let Some(tls) = tls else { return Ok(None) };
        let context = load_tls(name, tls)?;
        self.tls.push((name.to_owned(), context.clone()));
        Ok(Some(context))
    }

    /// Writes down token and address of the API, if it is on, or has that done when there is space.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn write_token(&self, unwritten: &mut Unwritten) -> anyhow::Result<()> {
        let (Some((path, url)), Some(authenticator)) =
            (self.token_file.clone(), self.api_authenticator.clone())
        else {
            return Ok(());
        };
        let write = move || authenticator.write_token(&path, &url);
        unwritten.write("the token file of the API", write).map(drop)
    }

    /// Where the API is.
    pub(super) fn api_url(&self) -> Option<String> {
        match (&self.api, &self.pages) {
            (Some(api), _) => Some(self.url("api.listen", api)),
            (None, pages) => pages.as_ref().map(|pages| self.url("http.listen", pages)),
        }
    }

    /// On a terminal: a link that opens the dashboard for whoever started the broker, who can read
    /// the token anyway. It is in no log.
    pub(super) fn print_link(&self) {
        if let Some(authenticator) = &self.api_authenticator
            && let Some(url) = self.api_url()
            && std::io::stdout().is_terminal()
        {
            let code = authenticator.log_ins.link(Owner::Token, Instant::now());
            let line = format!("dashboard: {url}/#login={code} (works once, for 10 minutes)\n");
            base::print(line.as_bytes());
        }
    }

    pub(super) fn urls(&self) -> impl Iterator<Item = String> {
        let pages = self.pages.as_ref().map(|pages| self.url("http.listen", pages));
        let api = self.api.as_ref().map(|api| self.url("api.listen", api) + config::API_PREFIX);
        pages.into_iter().chain(api)
    }

    fn url(&self, name: &str, server: &web::Server) -> String {
        let has_tls = self.tls.iter().any(|(known, _)| known == name);
        let scheme = if has_tls { "https" } else { "http" };
        format!("{scheme}://{}", server.address())
    }
}

/// TLS of an HTTP server.
///
/// # Errors
///
/// When a file cannot be used.
pub(super) fn load_tls(name: &str, tls: &TlsConfig) -> anyhow::Result<Arc<TlsContext>> {
    let options = TlsOptions { alpn: vec!["http/1.1".to_owned()], ..listen::tls_options(tls) };
    let context = TlsContext::load(options).with_context(|| format!("TLS of {name}"))?;
    Ok(Arc::new(context))
}
