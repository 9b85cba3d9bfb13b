//! The one parser of URLs: listeners, brokers, NATS servers and HTTP services.

use std::net::{IpAddr, Ipv6Addr};

use thiserror::Error;

/// A URL in its parts: `scheme://user@host:port/path?query`.
///
/// Which schemes, hosts and paths are valid, and what a missing port stands for, is up to the
/// caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Url<'a> {
    pub scheme: &'a str,
    /// All before the last `@` of the authority, still percent-encoded.
    pub user: Option<&'a str>,
    /// Without the brackets of an IPv6 address. May be empty.
    pub host: &'a str,
    pub port: Option<u16>,
    /// From the first `/` on, with the query. Empty if there is none.
    pub path: &'a str,
}

/// Why a text is not a URL. The messages complete "the URL ...".
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum UrlError {
    #[error("has no scheme")]
    Scheme,
    #[error("has an invalid host: IPv6 addresses need brackets, as in [::1]")]
    Host,
    #[error("has an invalid port: valid are 0 to 65535")]
    Port,
}

impl<'a> Url<'a> {
    /// # Errors
    ///
    /// There is no `://`, the port is not a number, or the host could be none.
    pub fn parse(text: &'a str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        let (host, port) = host_and_port(place)?;
        Ok(Self { scheme, user, host, port, path })
    }

    /// The host as it is written in URLs: an IPv6 address in brackets.
    pub fn bracketed_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.to_owned() }
    }

    /// Whether what is sent there stays on this machine. Names other than `localhost` are not
    /// resolved.
    pub fn is_loopback(&self) -> bool {
        is_loopback(self.host)
    }
}

/// Takes `host`, `host:port`, `[v6]` and `[v6]:port` apart; the host comes without brackets.
///
/// # Errors
///
/// A port that is not a number, or an IPv6 address without brackets.
pub fn host_and_port(text: &str) -> Result<(&str, Option<u16>), UrlError> {
    let port = |digits: &str| digits.parse().map(Some).map_err(|_| UrlError::Port);
    if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or(UrlError::Host)?;
        host.parse::<Ipv6Addr>().map_err(|_| UrlError::Host)?;
        return match rest.strip_prefix(':') {
            Some(digits) => Ok((host, port(digits)?)),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(UrlError::Host),
        };
    }
    let (host, port) = match text.split_once(':') {
        Some((_, digits)) if digits.contains(':') => return Err(UrlError::Host),
        Some((host, digits)) => (host, port(digits)?),
        None => (text, None),
    };
    let is_host = !host.contains(['[', ']', '@', '#']) && !host.contains(char::is_whitespace);
    if is_host { Ok((host, port)) } else { Err(UrlError::Host) }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    let ip = host.parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found() {
        let url = Url::parse("mqtts://anna:a%40b@[::1]:8883/a/b?c=d").unwrap();
        let parts = Url {
            scheme: "mqtts",
            user: Some("anna:a%40b"),
            host: "::1",
            port: Some(8883),
            path: "/a/b?c=d",
        };
        assert_eq!(url, parts);
        assert_eq!(url.bracketed_host(), "[::1]");
        assert!(url.is_loopback());
        let url = Url::parse("http://id.example?a").unwrap();
        assert_eq!((url.user, url.host, url.port, url.path), (None, "id.example", None, "?a"));
        assert!(!url.is_loopback());
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, error) in [
            ("id.example", UrlError::Scheme),
            ("tcp://::1", UrlError::Host),
            ("tcp://[::1", UrlError::Host),
            ("tcp://[::1]x", UrlError::Host),
            ("tcp://[a]", UrlError::Host),
            ("tcp://a b", UrlError::Host),
            ("tcp://a:", UrlError::Port),
            ("tcp://a:65536", UrlError::Port),
        ] {
            assert_eq!(Url::parse(text), Err(error), "{text}");
        }
    }
}
