//! The HTTP servers of a broker: metrics and probes, and the API.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use web::axum::Router;

use super::listen;
use crate::api::{ApiAuthenticator, Owner};
use crate::dashboard;
use crate::http;
use config::{ApiAddress, Config};

/// For metrics and probes, and for the API if it has an address of its own. Dropping it ends them.
#[derive(Default)]
pub(super) struct HttpServers {
    pages: Option<web::Server>,
    api: Option<web::Server>,
    pub(super) api_authenticator: Option<Arc<ApiAuthenticator>>,
}

impl HttpServers {
    /// Starts those that the configuration asks for. `routes`: of the API.
    ///
    /// # Errors
    ///
    /// When an address cannot be listened on.
    pub(super) fn start(
        config: &Config,
        pages: Router,
        routes: Option<Router>,
    ) -> anyhow::Result<Self> {
        let mut routes = routes.map(|routes| routes.merge(dashboard::router()));
        let mut servers = Self::default();
        let limits = web::Limits::default();
        let guard = |address: SocketAddr, routes| match address.ip().is_loopback() {
            true => http::guarded(routes, &config.http_hosts),
            false => routes,
        };
        if let Some(ApiAddress::Own(address)) = config.api.as_ref().map(|own| own.listen)
            && let Some(routes) = routes.take()
        {
            let server = web::Server::start(address, limits, guard(address, routes));
            let fault = || format!("cannot listen on http://{address}; choose another api.listen");
            servers.api = Some(server.with_context(fault)?);
        }
        if let Some(address) = config.http {
            let router = match routes {
                Some(routes) => pages.merge(routes),
                None => pages,
            };
            let server = web::Server::start(address, limits, guard(address, router));
            servers.pages = Some(server.with_context(|| listen::http_fault(address))?);
        }
        Ok(servers)
    }

    /// Where the API is.
    pub(super) fn api_url(&self) -> Option<String> {
        let server = self.api.as_ref().or(self.pages.as_ref())?;
        Some(format!("http://{}", server.address()))
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
        let own_path = self.api.as_ref().map(|server| (server, config::API_PREFIX));
        let all = self.pages.as_ref().map(|server| (server, "")).into_iter().chain(own_path);
        all.map(|(server, path)| format!("http://{}{path}", server.address()))
    }
}
