//! From the configured listeners to bound ones.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use net::{
    ClientAuth, ListenOptions, ProxyOptions, Scheme, TcpOptions, Thumbprints, TlsContext,
    TlsOptions, TlsVersion, WebSocketOptions,
};

use super::acceptor::BoundListener;
use super::limiter::{ConnectionLimiter, Listener};
use super::limits;
use config::{self, ApiAddress, Config, Transport};
use identity::auth::Authenticator;
use identity::namespaces::Belonging;

/// All listeners, bound.
pub(super) struct Listeners {
    pub(super) bound: Vec<BoundListener>,
    pub(super) urls: Vec<String>,
    pub(super) tls: Vec<(String, Arc<TlsContext>)>,
}

/// Binds all listeners, or none.
pub(super) fn bind_all(
    config: &Config,
    limiter: &Arc<ConnectionLimiter>,
    authenticator: &Authenticator,
) -> anyhow::Result<Listeners> {
    let by_username = |listener: &config::Listener| {
        listener.placing.from.contains(&config::NamespaceSource::Username)
    };
    let has_prefixes = config.listeners.iter().any(by_username);
    let mut all = Listeners { bound: Vec::new(), urls: Vec::new(), tls: Vec::new() };
    for listener in &config.listeners {
        let chain = authenticator.chain(&listener.authentication);
        let tls = load_tls_with(listener, authenticator.thumbprints(&chain))?;
        if let Some(note) = tls.as_ref().and_then(|tls| tls.chain_note()) {
            tracing::info!(listener = listener.name, "{note}");
        }
        if let Some(tls) = &tls {
            all.tls.push((listener.name.clone(), tls.clone()));
        }
        let address = address(listener);
        let bound = net::Listener::bind(&address, &options(config, listener, tls))
            .with_context(|| format!("listener '{}'", listener.name))?;
        let bound_url = url(&address, &bound);
        all.urls.push(bound_url.clone());
        let [written, whole] = listener.urls.clone();
        let running = Arc::new(Listener {
            name: listener.name.clone(),
            limits: limits::of_listener(config, listener),
            allow_anonymous: listener.allow_anonymous,
            chain,
            identity: listener
                .tls
                .as_ref()
                .map_or(config::CertificateIdentity::None, |tls| tls.own.identity),
            belonging: Belonging { placing: listener.placing.clone(), has_prefixes },
            has_layers: listener.tls.is_some() || listener.websocket.is_some(),
            connections_max: listener.connections_max,
            counts: limiter.add_listener(&listener.name, vec![written, whole, bound_url]),
            limiter: limiter.clone(),
        });
        all.bound.push(BoundListener {
            socket: bound,
            listener: running,
            connections_per_second_max: listener.connections_per_second_max,
        });
    }
    Ok(all)
}

/// Binds every address for a moment.
///
/// # Errors
///
/// The first that cannot be bound.
pub(super) fn try_all(config: &Config) -> anyhow::Result<()> {
    for listener in &config.listeners {
        let options = options(config, listener, load_tls(listener)?);
        net::Listener::bind(&address(listener), &options)
            .with_context(|| format!("listener '{}'", listener.name))?;
    }
    let own = config.api.as_ref().and_then(|api| match api.listen {
        ApiAddress::Own(address) => Some(address),
        ApiAddress::Http => None,
    });
    for address in config.http.into_iter().chain(own) {
        std::net::TcpListener::bind(address).map(drop).with_context(|| http_fault(address))?;
    }
    Ok(())
}

/// What to say when the HTTP server cannot listen.
pub(super) fn http_fault(address: SocketAddr) -> String {
    format!("cannot listen on http://{address}; choose another with --http ADDRESS, or --http off")
}

fn scheme(transport: Transport) -> Scheme {
    match transport {
        Transport::Tls => Scheme::Tls,
        Transport::Ws => Scheme::Ws,
        Transport::Wss => Scheme::Wss,
        Transport::Tcp | Transport::Unix => Scheme::Tcp,
    }
}

fn address(listener: &config::Listener) -> net::Address {
    match &listener.address {
        config::Address::Unix(path) => net::Address::Unix(path.clone()),
        config::Address::Ip(address) => {
            let mut made = net::Address::inet(scheme(listener.transport), *address);
            if let (net::Address::Inet { path, .. }, Some(websocket)) =
                (&mut made, &listener.websocket)
            {
                *path = websocket.path.clone().unwrap_or_default();
            }
            made
        }
    }
}

fn options(
    config: &Config,
    listener: &config::Listener,
    tls: Option<Arc<TlsContext>>,
) -> ListenOptions {
    let trusted = listener.trusted_proxies.clone().unwrap_or_default();
    let websocket = listener.websocket.as_ref();
    ListenOptions {
        tls,
        websocket: WebSocketOptions {
            origins: websocket.map(|own| origins(own, listener)).unwrap_or_default(),
            trusted_forwarders: trusted.clone(),
            ..WebSocketOptions::default()
        },
        proxy: listener.trusted_proxies.as_ref().map(|_| ProxyOptions { trusted }),
        unix_mode: listener.unix_mode,
        tcp: TcpOptions { keepalive_secs: keepalive_secs(config), ..TcpOptions::default() },
        ..ListenOptions::default()
    }
}

/// Of accepted connections. None: they are not probed.
pub(super) fn keepalive_secs(config: &Config) -> Option<u32> {
    Some(config.limits.tcp_keepalive_secs).filter(|secs| *secs > 0)
}

fn origins(websocket: &config::WebSocketConfig, listener: &config::Listener) -> net::Origins {
    match &websocket.origins {
        config::Origins::Any => net::Origins::Any,
        config::Origins::Same => net::Origins::Same { is_local: listener.address.is_local() },
        config::Origins::Listed(listed) => net::Origins::Listed(listed.clone()),
    }
}

/// For checks: no certificate is registered.
pub(super) fn load_tls(listener: &config::Listener) -> anyhow::Result<Option<Arc<TlsContext>>> {
    load_tls_with(listener, Vec::new())
}

fn load_tls_with(
    listener: &config::Listener,
    registered: Vec<Thumbprints>,
) -> anyhow::Result<Option<Arc<TlsContext>>> {
    let Some(tls) = &listener.tls else { return Ok(None) };
    let registered = tls.own.takes_registered.then_some(registered);
    let context = TlsContext::load(TlsOptions { registered, ..tls_options(tls) })
        .with_context(|| format!("TLS of listener '{}'", listener.name))?;
    Ok(Some(Arc::new(context)))
}

pub(super) fn tls_options(tls: &config::TlsConfig) -> TlsOptions {
    TlsOptions {
        chain: tls.chain.clone(),
        client_ca: tls.client_ca.clone(),
        client_auth: match tls.client_auth {
            config::ClientAuth::None => ClientAuth::None,
            config::ClientAuth::Optional => ClientAuth::Optional,
            config::ClientAuth::Require => ClientAuth::Require,
        },
        revocation_lists: tls.crl.clone(),
        version_min: match tls.min_version {
            config::TlsVersion::V12 => TlsVersion::V12,
            config::TlsVersion::V13 => TlsVersion::V13,
        },
        ..TlsOptions::new(&tls.certificate, &tls.key)
    }
}

/// The URL with the port that was really bound.
fn url(address: &net::Address, bound: &net::Listener) -> String {
    match (address, bound.local_address()) {
        (net::Address::Inet { scheme, path, .. }, Some(local)) => {
            let scheme = match scheme {
                Scheme::Tcp => "tcp",
                Scheme::Tls => "tls",
                Scheme::Ws => "ws",
                Scheme::Wss => "wss",
            };
            format!("{scheme}://{local}{}", path)
        }
        _ => address.to_string(),
    }
}
