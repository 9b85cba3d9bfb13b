//! What a peer speaks that does not speak what it should: so that the log says it instead of which
//! byte was wrong.

use thiserror::Error;

use crate::proxy::{self, Sniff};

/// A protocol that clients speak to the wrong listener. Says what to do about it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.hint())]
pub enum Foreign {
    Tls,
    Http,
    Proxy,
    Mqtt,
}

impl Foreign {
    /// Recognises a protocol by the first bytes of a connection.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x16, 0x03, 0x00..=0x04, ..] => Some(Self::Tls),
            [0x10, rest @ ..] if is_connect(rest) => Some(Self::Mqtt),
            _ if proxy::sniff(bytes) == Sniff::Header => Some(Self::Proxy),
            _ if METHODS.iter().any(|method| bytes.starts_with(method)) => Some(Self::Http),
            _ => None,
        }
    }

    /// For logs.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Tls => "the client speaks TLS: use a listener with tls:// or wss://",
            Self::Http => "the client speaks HTTP: use a listener with ws:// for WebSocket",
            Self::Proxy => {
                "unexpected PROXY header: set proxy_protocol and trusted_proxies on this listener"
            }
            Self::Mqtt => "the client speaks plain MQTT: use a listener with tcp://",
        }
    }
}

/// Behind the first byte of a CONNECT: a length of one to four bytes, then the name.
fn is_connect(rest: &[u8]) -> bool {
    let names = [&b"\0\x04MQTT"[..], b"\0\x06MQIsdp"];
    (1..=4).any(|at| {
        let name = rest.get(at..).unwrap_or_default();
        names.iter().any(|known| name.starts_with(known))
    })
}

const METHODS: [&[u8]; 7] =
    [b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ", b"CONNECT ", b"DELETE "];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_to_the_wrong_listener_is_recognised() {
        for (bytes, foreign) in [
            (&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], Some(Foreign::Tls)),
            (b"GET /mqtt HTTP/1.1\r\n", Some(Foreign::Http)),
            (b"POST / HTTP/1.1\r\n", Some(Foreign::Http)),
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 1883\r\n", Some(Foreign::Proxy)),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11", Some(Foreign::Proxy)),
            (b"\x10\x0c\0\x04MQTT\x05\x02", Some(Foreign::Mqtt)),
            (b"\x10\x80\x01\0\x06MQIsdp\x03\x02", Some(Foreign::Mqtt)),
            (b"\x10\x0c\0\x04MQT", None),
            (b"GETTING", None),
            (b"", None),
        ] {
            assert_eq!(Foreign::of(bytes), foreign, "{bytes:?}");
        }
    }
}
