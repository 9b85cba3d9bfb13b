//! Can this machine carry the scenario? Asked before anything is started, so that a run is refused
//! in one sentence instead of breaking in the middle.

use std::net::{IpAddr, Ipv4Addr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::host;
use flock_model::{Scenario, Transport};

/// What was found out, and how the run is set up for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preflight {
    /// Local addresses to connect from.
    pub sources: Vec<IpAddr>,
    /// Processes needed to get round the limit of open files; 1 is this one alone.
    pub processes: usize,
    pub notes: Vec<String>,
}

/// Why the run would break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "{connections} connections need more than {ports} local ports per broker and source address. Use {more} source addresses (--ifaddr), more broker ports, a larger net.ipv4.ip_local_port_range, or a smaller --scale"
    )]
    Ports { connections: u64, ports: u64, more: u64 },
    #[error(
        "{connections} connections need about {need_mib} MiB of memory, but {have_mib} MiB are \
             free: use a smaller --scale or more machines (--agents)"
    )]
    Memory { connections: u64, need_mib: u64, have_mib: u64 },
    #[error(
        "{connections} connections need {processes} processes with {limit} open files each, at \
             most {PROCESSES_MAX} are possible: raise the limit (ulimit -Hn) or use a smaller \
             --scale"
    )]
    Descriptors { connections: u64, processes: u64, limit: u64 },
    #[error("the scenario has no clients on this machine")]
    NoClients,
}

/// Checks descriptors, ports and memory for the clients that run here.
pub fn check(scenario: &Scenario) -> Result<Preflight, Refusal> {
    let connections: u64 = scenario.groups.iter().map(|group| group.here.count).sum();
    if connections == 0 {
        return Err(Refusal::NoClients);
    }
    let mut preflight =
        Preflight { sources: scenario.source_addresses.clone(), processes: 1, notes: Vec::new() };
    check_descriptors(connections, &mut preflight)?;
    check_ports(scenario, connections, &mut preflight)?;
    let need = connections * CONNECTION_BYTES;
    let have = host::memory_available_bytes();
    if have > 0 && need > have {
        let (need_mib, have_mib) = (need >> 20, have >> 20);
        return Err(Refusal::Memory { connections, need_mib, have_mib });
    }
    Ok(preflight)
}

fn check_descriptors(connections: u64, preflight: &mut Preflight) -> Result<(), Refusal> {
    let limit = host::raise_descriptors();
    let usable = limit.saturating_sub(DESCRIPTORS_SPARE).max(1);
    let processes = connections.div_ceil(usable);
    if processes > PROCESSES_MAX {
        return Err(Refusal::Descriptors { connections, processes, limit });
    }
    if processes > 1 {
        preflight.notes.push(format!(
            "{processes} local processes, because of the limit of {limit} open files"
        ));
    }
    preflight.processes = processes as usize;
    Ok(())
}

fn check_ports(
    scenario: &Scenario,
    connections: u64,
    preflight: &mut Preflight,
) -> Result<(), Refusal> {
    let range = host::sysctl("net.ipv4.ip_local_port_range").unwrap_or_default();
    let mut bounds = range.split_whitespace().filter_map(|bound| bound.parse::<u64>().ok());
    let (low, high) = (bounds.next().unwrap_or(32_768), bounds.next().unwrap_or(60_999));
    let range = high.saturating_sub(low) + 1;
    let (ports, quick) = (range * PORTS_USABLE_PERCENT / 100, range * PORTS_QUICK_PERCENT / 100);
    let over_ip = scenario.brokers.iter().filter(|broker| broker.transport != Transport::Unix);
    let addresses: Vec<&String> = over_ip.flat_map(|broker| &broker.addresses).collect();
    if addresses.is_empty() {
        return Ok(());
    }
    let targets = addresses.len() as u64;
    let sources = preflight.sources.len().max(1) as u64;
    if connections <= quick * targets * sources {
        return Ok(());
    }
    if preflight.sources.is_empty() && addresses.iter().all(|address| is_loopback(address)) {
        // All of 127/8 is ours.
        let needed = connections.div_ceil(quick * targets);
        preflight.sources =
            (2..needed + 2).map(|n| IpAddr::V4(Ipv4Addr::from(0x7F00_0000 + n as u32))).collect();
        preflight.notes.push(format!(
            "{needed} loopback source addresses, because one has too \
             few ports"
        ));
        return Ok(());
    }
    if connections > ports * targets * sources {
        let more = connections.div_ceil(ports * targets) - sources;
        return Err(Refusal::Ports { connections, ports, more });
    }
    preflight.notes.push(format!(
        "more than {quick} connections between two addresses: the kernel's search for free ports \
             increases connect latency; use more source addresses (--ifaddr)"
    ));
    Ok(())
}

/// Addresses of the scenario's brokers at which nobody listens, as this machine sees it. Of a
/// broker with several, one that listens is enough: clients find it.
pub fn deaf(scenario: &Scenario) -> Vec<String> {
    let listens = |address: &String| match address.starts_with('/') {
        true => UnixStream::connect(address).is_ok(),
        false => {
            let found = address.to_socket_addrs().into_iter().flatten();
            found.into_iter().any(|at| TcpStream::connect_timeout(&at, CONNECT_MAX).is_ok())
        }
    };
    let deaf = |broker: &&flock_model::Broker| !broker.addresses.iter().any(listens);
    let mut all: Vec<String> =
        scenario.brokers.iter().filter(deaf).flat_map(|broker| broker.addresses.clone()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Whether an address is on this machine for certain.
pub fn is_local(address: &str) -> bool {
    address.starts_with('/') || is_loopback(address)
}

fn is_loopback(address: &str) -> bool {
    address
        .to_socket_addrs()
        .is_ok_and(|mut found| found.all(|found| found.ip().to_canonical().is_loopback()))
}

/// Open files that are no connections: libraries, polls, timers, the report.
const DESCRIPTORS_SPARE: u64 = 200;
/// Not every port of the range is free, and searching for the last ones takes the kernel long.
const PORTS_USABLE_PERCENT: u64 = 90;
/// Linux gives out every other port first. When that half is taken, each connect looks through all
/// of it in vain: 28,000 ports made connects of up to a second behind the 14,000th.
const PORTS_QUICK_PERCENT: u64 = 45;
/// Ours and the kernel's for one connection's end, idle, as measured.
const CONNECTION_BYTES: u64 = 6 * 1024;
const PROCESSES_MAX: u64 = 256;
/// Who does not answer a SYN for so long is not there.
const CONNECT_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use flock_model::{ClientGroup, Pattern, Slice, Version};

    fn scenario(clients: u64, address: &str) -> Scenario {
        let group = ClientGroup {
            id: "g".into(),
            client_ids: Pattern::parse("c-{i}").unwrap(),
            offset: 0,
            count: clients,
            here: Slice::whole(clients),
            version: Version::V5,
            scales: true,
        };
        Scenario {
            id: "t".into(),
            title: String::new(),
            description: String::new(),
            seed: 1,
            brokers: vec![flock_model::Broker {
                id: "b".into(),
                addresses: vec![address.into()],
                transport: Transport::Tcp,
                tls: flock_model::Tls::default(),
            }],
            brokers_distinct: false,
            source_addresses: Vec::new(),
            groups: vec![group],
            topics: Vec::new(),
            subscriptions: Vec::new(),
            sinks: Vec::new(),
            stages: Vec::new(),
            drain_us: 0,
            warm_up_us: None,
            cool_down_us: None,
            expect: flock_model::Expect::default(),
            search: None,
            scale: 1.0,
        }
    }

    #[test]
    fn a_broker_that_is_not_there_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut both = scenario(1, &address);
        assert_eq!(deaf(&both), Vec::<String>::new());
        both.brokers[0].addresses.push("/no/such/socket".to_owned());
        assert_eq!(deaf(&both), Vec::<String>::new(), "one of its addresses is enough");
        drop(listener);
        assert_eq!(deaf(&both), ["/no/such/socket".to_owned(), address]);
    }

    #[test]
    fn nothing_to_do_and_too_much_are_refused() {
        assert_eq!(check(&scenario(0, "127.0.0.1:1883")), Err(Refusal::NoClients));
        let refused = check(&scenario(4_000_000_000, "127.0.0.1:1883")).unwrap_err();
        assert!(matches!(refused, Refusal::Descriptors { .. } | Refusal::Memory { .. }));
    }

    #[test]
    fn loopback_gets_the_source_addresses_it_needs() {
        let mut preflight = Preflight::default();
        check_ports(&scenario(1, "127.0.0.1:1883"), 200_000, &mut preflight).unwrap();
        assert!(preflight.sources.len() >= 3, "{:?}", preflight.sources);
        let mut local = scenario(1, "/run/broker.sock");
        local.brokers[0].transport = Transport::Unix;
        assert_eq!(check_ports(&local, 200_000, &mut Preflight::default()), Ok(()));
    }

    #[test]
    fn a_far_broker_is_warned_about_before_it_is_refused() {
        let far = |connections: u64| {
            let mut preflight = Preflight::default();
            let found = check_ports(&scenario(1, "192.0.2.1:1883"), connections, &mut preflight);
            found.map(|()| preflight.notes.len())
        };
        // Half of the range is the same share of it on every machine.
        let quick_max = (1..).map(|n| n * 500).take_while(|n| far(*n) == Ok(0)).last().unwrap();
        assert_eq!(far(quick_max + 1_000), Ok(1));
        assert!(matches!(far(200_000), Err(Refusal::Ports { .. })));
    }
}
