//! Ranges of IP addresses, to say which proxies are trusted.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// A range such as `10.0.0.0/8` or `fd00::/8`; a bare address is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix_bits: u8,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not an address range: write 10.0.0.0/8, fd00::/8 or a single address")]
pub struct CidrError(String);

impl Cidr {
    /// Whether `address` lies within. An IPv4 address mapped into IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = (network.to_bits() ^ address.to_bits()).leading_zeros();
                differing >= u32::from(self.prefix_bits)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = (network.to_bits() ^ address.to_bits()).leading_zeros();
                differing >= u32::from(self.prefix_bits)
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let error = || CidrError(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().map_err(|_| error())?;
        let bits_max = if network.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| error())?,
            None => bits_max,
        };
        if prefix_bits > bits_max {
            return Err(error());
        }
        Ok(Self { network, prefix_bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(range: &str, address: &str) -> bool {
        range.parse::<Cidr>().expect("range").contains(address.parse().expect("address"))
    }

    #[test]
    fn ranges_hold_what_they_should() {
        assert!(holds("10.0.0.0/8", "10.255.0.1"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "1.2.3.4"));
        assert!(!holds("0.0.0.0/0", "::1"));
        assert!(holds("127.0.0.1", "::ffff:127.0.0.1"));
        assert!(!holds("127.0.0.1", "127.0.0.2"));
        assert!(holds("fd00::/8", "fdff::1"));
        assert!(!holds("fd00::/9", "fd80::1"));
        assert!(holds("::/0", "2001:db8::1"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "10.0.0.0/33", "::/129", "a/8", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
