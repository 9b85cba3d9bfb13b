//! Which addresses a target may have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use net::Cidr;

/// The networks that may be connected to although they are not public. Public addresses always may.
///
/// Rules name servers, and servers name further servers. Without this check a rule could reach the
/// services of this machine and its neighbours, such as the metadata of a cloud at 169.254.169.254.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    permitted: Vec<Cidr>,
}

impl Networks {
    /// These networks, and all public addresses.
    pub fn permitting(permitted: Vec<Cidr>) -> Self {
        Self { permitted }
    }

    /// Whether this address may be connected to.
    pub fn permits(&self, address: IpAddr) -> bool {
        // An IPv6 address that leads to an IPv4 address counts as that one.
        let address = embedded(address).map_or(address, IpAddr::V4);
        is_public(address) || self.permitted.iter().any(|network| network.contains(address))
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !PRIVATE_V4.iter().any(|(network, bits)| is_within_v4(address, *network, *bits))
        }
        IpAddr::V6(address) => {
            !PRIVATE_V6.iter().any(|(network, bits)| is_within_v6(address, *network, *bits))
        }
    }
}

/// The IPv4 address in a mapped (RFC 4291), translated (RFC 6052) or 6to4 (RFC 3056) address.
fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => Some(v4(g, h)),
        [0x2002, ..] => Some(v4(b, c)),
        _ => None,
    }
}

fn is_within_v4(address: Ipv4Addr, network: Ipv4Addr, bits: u32) -> bool {
    (address.to_bits() ^ network.to_bits()) >> (32 - bits) == 0
}

fn is_within_v6(address: Ipv6Addr, network: Ipv6Addr, bits: u32) -> bool {
    (address.to_bits() ^ network.to_bits()) >> (128 - bits) == 0
}

/// Networks that are not public, by IANA's registry of special addresses.
const PRIVATE_V4: [(Ipv4Addr, u32); 14] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // A service of Azure's hosts for their virtual machines, although the address is public.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast, reserved and broadcast.
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// All of IPv6 but 2000::/3, and what in it is not public.
const PRIVATE_V6: [(Ipv6Addr, u32); 5] = [
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 3),
    (Ipv6Addr::new(0x4000, 0, 0, 0, 0, 0, 0, 0), 2),
    (Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0), 1),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(networks: &Networks, address: &str) -> bool {
        networks.permits(address.parse().unwrap())
    }

    #[test]
    fn public_addresses_need_no_permission() {
        let none = Networks::default();
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.255.255",
            "172.32.0.1",
            "192.167.0.1",
            "168.63.129.17",
            "100.63.255.255",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
        ] {
            assert!(permits(&none, address), "{address}");
        }
    }

    #[test]
    fn addresses_of_own_networks_need_permission() {
        let none = Networks::default();
        for address in [
            "0.0.0.0",
            "127.0.0.1",
            "127.255.255.255",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(!permits(&none, address), "{address}");
        }
    }

    #[test]
    fn a_permission_is_for_its_network_only() {
        let loopback = Networks::permitting(vec!["127.0.0.1".parse().unwrap()]);
        assert!(permits(&loopback, "127.0.0.1"));
        assert!(permits(&loopback, "::ffff:127.0.0.1"));
        assert!(!permits(&loopback, "127.0.0.2"));
        assert!(!permits(&loopback, "::1"));
        assert!(!permits(&loopback, "169.254.169.254"));
        assert!(permits(&loopback, "8.8.8.8"));
    }
}
