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
    /// None: the operator of the broker has written the target, and may name any host.
    tenant: Option<Tenant>,
}

/// The namespace whose users have written a target.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tenant {
    namespace: String,
    /// In lower case: names, `*.` and a name for all below it, or `*` for all hosts.
    hosts: Vec<String>,
}

/// Why a host may not be connected to. The texts do not say which address a name has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("{host}: not among `target_hosts` of namespace '{namespace}'")]
    Host { host: String, namespace: String },
    #[error(
        "{host}: the address is not public, and not in `target_networks` of namespace \
         '{namespace}'"
    )]
    Address { host: String, namespace: String },
}

impl Networks {
    /// These networks, and all public addresses.
    pub fn permitting(permitted: Vec<Cidr>) -> Self {
        Self { permitted, tenant: None }
    }

    /// For a target that users of a namespace have written: these networks, and public addresses of
    /// these hosts, which are in lower case: names, `*.` and a name, or `*`.
    pub fn of_namespace(namespace: &str, hosts: Vec<String>, permitted: Vec<Cidr>) -> Self {
        Self { permitted, tenant: Some(Tenant { namespace: namespace.to_owned(), hosts }) }
    }

    /// The namespace whose users have written the target. None: the operator has.
    pub fn namespace(&self) -> Option<&str> {
        self.tenant.as_ref().map(|tenant| &*tenant.namespace)
    }

    /// Checks the host of a server as far as that is possible without resolving its name.
    ///
    /// # Errors
    ///
    /// Users of the namespace may not name it. Targets of the operator may name any host.
    pub fn check_host(&self, host: &str) -> Result<(), HostError> {
        let Some(tenant) = &self.tenant else { return Ok(()) };
        let (host, namespace) = (host.to_owned(), tenant.namespace.clone());
        let is_permitted = match host.parse::<IpAddr>() {
            Ok(address) if !self.permits(address) => {
                return Err(HostError::Address { host, namespace });
            }
            Ok(address) => self.is_in_permitted(address) || tenant.has_address(address),
            Err(_) => tenant.has_name(&host),
        };
        if is_permitted { Ok(()) } else { Err(HostError::Host { host, namespace }) }
    }

    /// The error of a name whose addresses are not permitted. None: the target is the operator's.
    pub(crate) fn refused(&self, host: &str) -> Option<HostError> {
        let namespace = self.tenant.as_ref()?.namespace.clone();
        Some(HostError::Address { host: host.to_owned(), namespace })
    }

    /// Whether this address may be connected to.
    pub fn permits(&self, address: IpAddr) -> bool {
        is_public(plain(address)) || self.is_in_permitted(address)
    }

    fn is_in_permitted(&self, address: IpAddr) -> bool {
        let address = plain(address);
        self.permitted.iter().any(|network| network.contains(address))
    }
}

impl Tenant {
    fn has_address(&self, address: IpAddr) -> bool {
        self.hosts.iter().any(|own| own == "*" || own.parse() == Ok(address))
    }

    fn has_name(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let is_below = |own: &str| {
            let front = own.strip_prefix('*').and_then(|end| host.strip_suffix(end));
            front.is_some_and(|front| !front.is_empty() && !front.ends_with('.'))
        };
        self.hosts.iter().any(|own| *own == host || is_below(own))
    }
}

/// An IPv6 address that leads to an IPv4 address as that one.
fn plain(address: IpAddr) -> IpAddr {
    embedded(address).map_or(address, IpAddr::V4)
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

    #[test]
    fn a_tenant_reaches_its_hosts_and_networks_only() {
        let hosts = |hosts: &[&str]| hosts.iter().map(|&host| host.to_owned()).collect();
        let loopback: Cidr = "127.0.0.0/8".parse().unwrap();
        let own = |list: &[&str]| Networks::of_namespace("acme", hosts(list), Vec::new());
        let named = own(&["*.acme.example", "hooks.example", "9.9.9.9"]);
        for host in ["a.acme.example", "A.B.Acme.Example.", "hooks.example", "9.9.9.9"] {
            assert_eq!(named.check_host(host), Ok(()), "{host}");
        }
        for host in [
            "acme.example",
            ".acme.example",
            "..acme.example",
            "xacme.example",
            "a.hooks.example",
            "acme.example.evil",
            "8.8.8.8",
            "127.0.0.1",
            "::1",
            "",
            ".",
            "127.1",
            "0x7f000001",
        ] {
            assert!(named.check_host(host).is_err(), "{host}");
        }
        let all = own(&["*"]);
        assert!(["8.8.8.8", "any.name", "127.1"].iter().all(|host| all.check_host(host).is_ok()));
        for host in ["127.0.0.1", "169.254.169.254", "::ffff:169.254.169.254", "10.0.0.1", "::1"] {
            let error = all.check_host(host).unwrap_err();
            assert!(matches!(error, HostError::Address { .. }), "{host}");
        }
        let none = own(&[]);
        assert!(["8.8.8.8", "any.name", "*"].iter().all(|host| none.check_host(host).is_err()));
        let local = Networks::of_namespace("acme", Vec::new(), vec![loopback]);
        assert!(["127.0.0.1", "::ffff:127.0.0.1"].iter().all(|it| local.check_host(it).is_ok()));
        assert!(["8.8.8.8", "localhost"].iter().all(|host| local.check_host(host).is_err()));
        assert!(permits(&local, "127.0.0.1") && !permits(&local, "10.0.0.1"));
        assert_eq!(Networks::default().check_host("127.0.0.1"), Ok(()));
    }

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
