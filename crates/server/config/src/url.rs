//! URLs of HTTP services.

/// Where a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub is_tls: bool,
    is_loopback: bool,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    /// With the query, if there is one.
    pub path: String,
}

impl Url {
    /// Reads `http://host:port/path` or `https://...`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted = |why: &dyn std::fmt::Display| {
            format!("'{text}' {why}; write a URL such as https://id.example/keys")
        };
        let url = net::Url::parse(text).map_err(|error| wanted(&error))?;
        let is_tls = match url.scheme {
            "http" => false,
            "https" => true,
            _ => return Err(wanted(&"is neither http:// nor https://")),
        };
        if url.user.is_some() {
            return Err("the URL must not have a username or password; send them in headers".into());
        }
        if url.host.is_empty() {
            return Err(wanted(&"has no host"));
        }
        let port = url.port.unwrap_or(if is_tls { 443 } else { 80 });
        let path = match url.path {
            "" => "/".to_owned(),
            path if path.starts_with('?') => format!("/{path}"),
            path => path.to_owned(),
        };
        if !path.bytes().all(is_path_byte) {
            return Err(wanted(&"has characters in its path that must be percent-encoded"));
        }
        Ok(Self { is_tls, is_loopback: url.is_loopback(), host: url.host.to_owned(), port, path })
    }

    /// Does what goes there stay on this machine, or encrypted?
    pub fn is_private(&self) -> bool {
        self.is_tls || self.is_loopback
    }
}

fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"<>`#".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let url = Url::parse("https://id.example/keys?a=b").unwrap();
        assert_eq!(
            (url.is_tls, &*url.host, url.port, &*url.path),
            (true, "id.example", 443, "/keys?a=b")
        );
        assert!(url.is_private());
        let url = Url::parse("http://[::1]:8080").unwrap();
        assert_eq!((url.is_tls, &*url.host, url.port, &*url.path), (false, "::1", 8080, "/"));
        assert!(url.is_private() && !Url::parse("http://10.0.0.1/").unwrap().is_private());
        for text in ["", "id.example", "ftp://a/b", "https:///x", "http://a:b@c/"] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }
}
