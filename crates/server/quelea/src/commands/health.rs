//! `quelea health`: whether a broker works, in one line and an exit code, for health checks of
//! containers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use client::blocking::{Client, ClientError};
use client::{ConnectOptions, Endpoint, TlsOptions};
use codec::Reason;
use net::Url;

use super::serve::ServeArgs;
use base::{EXIT_FAILURE, EXIT_OK, complain, print};
use config::{Address, Config, Listener, Transport};

/// The flags of `quelea health`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct HealthArgs {
    /// Configuration file of the broker (TOML), which has its addresses.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask this broker instead: http://, https://, mqtt://, mqtts://, ws:// or wss://.
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    url: Option<String>,
    /// Ask whether clients are served, not only whether the broker works.
    #[arg(long)]
    ready: bool,
    /// The longest wait for an answer, in seconds.
    #[arg(long, value_name = "SECS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=300))]
    timeout: u64,
}

/// Runs the command; the result is the exit code: 0 or 1.
pub fn run(args: &HealthArgs) -> u8 {
    match args.ask() {
        Ok(state) => {
            print(format!("{state}\n").as_bytes());
            EXIT_OK
        }
        Err(why) => {
            complain(&why);
            EXIT_FAILURE
        }
    }
}

impl HealthArgs {
    /// The answer of a broker that is fine; else what is wrong.
    fn ask(&self) -> Result<String, String> {
        let url = match &self.url {
            Some(url) => url.clone(),
            None => {
                let args = ServeArgs { config: self.config.clone(), ..ServeArgs::default() };
                let loaded = args.reread().map_err(|error| error.to_string())?;
                url_of(&loaded.config)?
            }
        };
        let timeout = Duration::from_secs(self.timeout);
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("http" | "https") => self.ask_http(&url, timeout),
            _ => self.ask_mqtt(url, timeout),
        }
    }

    /// Nothing secret is sent, so that any certificate is good enough.
    fn ask_http(&self, url: &str, timeout: Duration) -> Result<String, String> {
        let path = if self.ready { "/readyz" } else { "/healthz" };
        let url = web::http_url(url, PORT_DEFAULT, path)?;
        let parts = Url::parse(&url).map_err(|error| error.to_string())?;
        let tls = web::ClientTls { is_insecure: true, ..web::ClientTls::default() };
        let agent = web::agent(&parts, &tls, timeout).map_err(|error| error.to_string())?;
        let mut answer = agent.get(&url).call().map_err(|error| format!("{url}: {error}"))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let line = body.unwrap_or_default().trim_end().to_owned();
        match status {
            200 => Ok(line),
            _ => Err(format!("{url}: HTTP {status}: {line}")),
        }
    }

    /// Any CONNACK shows a broker that works. Only some show one that does not serve clients.
    fn ask_mqtt(&self, url: String, timeout: Duration) -> Result<String, String> {
        let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
        let endpoint = Endpoint { url: url.clone(), tls, ..Endpoint::default() };
        match Client::connect(&endpoint, &ConnectOptions::default(), timeout) {
            Ok((client, _)) => {
                // What it answered counts, not how the connection ends.
                let _ = client.disconnect();
                Ok(format!("{url}: accepts clients"))
            }
            Err(ClientError::Refused { reason, .. })
                if !(self.ready && NOT_READY.contains(&reason)) =>
            {
                Ok(format!("{url}: answers CONNECT with {reason}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Where the broker of this configuration can be asked.
fn url_of(config: &Config) -> Result<String, String> {
    if let Some(address) = config.http {
        let scheme = if config.http_tls.is_some() { "https" } else { "http" };
        return reachable(address).map(|address| format!("{scheme}://{address}"));
    }
    let is_direct = |listener: &&Listener| listener.trusted_proxies.is_none();
    let Some(listener) = config.listeners.iter().find(is_direct) else {
        return Err(
            "http.listen is \"off\" and all listeners expect a PROXY header: set --url".into()
        );
    };
    let path = listener.websocket.as_ref().and_then(|websocket| websocket.path.as_deref());
    match &listener.address {
        Address::Unix(path) => Ok(format!("{}://{}", Transport::Unix.scheme(), path.display())),
        Address::Ip(address) => {
            let (scheme, address) = (listener.transport.scheme(), reachable(*address)?);
            Ok(format!("{scheme}://{address}{}", path.unwrap_or_default()))
        }
    }
}

/// One that listens everywhere is there on loopback.
fn reachable(address: SocketAddr) -> Result<SocketAddr, String> {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    match address.port() {
        0 => Err(format!("{address}: port 0 is any free port: set --url")),
        port => Ok(SocketAddr::new(ip, port)),
    }
}

const PORT_DEFAULT: u16 = 9883;

const ANSWER_BYTES_MAX: u64 = 4096;

/// Answers to CONNECT of a broker that serves nobody now.
const NOT_READY: [Reason; 4] = [
    Reason::SERVER_UNAVAILABLE,
    Reason::SERVER_BUSY,
    Reason::SERVER_SHUTTING_DOWN,
    Reason::USE_ANOTHER_SERVER,
];

const EXAMPLES: &str = "\
Exit code 0: the broker is healthy (with --ready: ready). 1: it is not, or cannot be reached.
Without HTTP, a CONNECT is sent to the first listener. Certificates are not verified, because
nothing secret is sent.

Examples:
  quelea health --config /etc/quelea/quelea.toml
  quelea health --ready --url http://127.0.0.1:9883
  quelea health --url mqtt://127.0.0.1:1883";

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Machine, SourceFile, Sources, load};

    fn url(text: &str) -> Result<String, String> {
        let file = SourceFile { path: "quelea.toml".into(), text: text.into() };
        let sources = Sources { file: Some(file), ..Sources::default() };
        url_of(&load(&sources, &Machine::UNKNOWN).unwrap().config)
    }

    #[test]
    fn the_broker_is_asked_where_it_can_be_reached() {
        let listener = |keys: &str| format!("http.listen = \"off\"\n[[listeners]]\n{keys}");
        for (text, found) in [
            ("", "http://127.0.0.1:9883"),
            ("http.listen = \"0.0.0.0:7\"", "http://127.0.0.1:7"),
            ("http.listen = \"[::]:7\"", "http://[::1]:7"),
            ("http.listen = \"192.0.2.1:7\"", "http://192.0.2.1:7"),
            (&listener("url = \"tcp://127.0.0.1:1884\""), "tcp://127.0.0.1:1884"),
            (&listener("url = \"unix:///run/q\""), "unix:///run/q"),
            (&listener("url = \"ws://0.0.0.0:8\"\nallow_anonymous = true"), "ws://127.0.0.1:8"),
        ] {
            assert_eq!(url(text).as_deref(), Ok(found), "{text}");
        }
        assert!(url("http.listen = \"127.0.0.1:0\"").unwrap_err().contains("--url"));
        let proxied = "url = \"tcp://127.0.0.1:1\"\nproxy_protocol = true\n\
            trusted_proxies = [\"127.0.0.1/32\"]";
        assert!(url(&listener(proxied)).unwrap_err().contains("PROXY"));
    }
}
