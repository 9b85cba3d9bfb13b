//! Pointing a scenario at the brokers at hand, and bending its times.

use std::net::Ipv6Addr;

use super::{Broker, Command, Scenario, Spread, Tls, Transport};

/// A broker as given on the command line: `host:port`, with a transport if one was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: String,
    /// `None` keeps the scenario's.
    pub transport: Option<Transport>,
}

impl Target {
    /// Reads `host`, `host:port`, `[::1]:port`, and both behind `mqtt://`, `mqtts://`, `ws://`,
    /// `wss://`; and `unix:///path`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            if !path.starts_with('/') {
                return Err(format!(
                    "`{text}` needs an absolute path, such as unix:///run/quelea.sock"
                ));
            }
            return Ok(Self { address: path.to_owned(), transport: Some(Transport::Unix) });
        }
        let wrong = |why: &str| format!("`{text}` {why}; write host:port or mqtt://host:port");
        let bare_v6 = text.parse::<Ipv6Addr>().map(|ip| format!("mqtt://[{ip}]"));
        let is_bare = !text.contains("://");
        let full = match (bare_v6, is_bare) {
            (Ok(full), _) => full,
            (Err(_), true) => format!("mqtt://{text}"),
            (Err(_), false) => text.to_owned(),
        };
        let url = net::Url::parse(&full).map_err(|error| wrong(&error.to_string()))?;
        let path = if url.path.is_empty() { "/mqtt" } else { url.path }.to_owned();
        let (transport, port) = match url.scheme {
            "mqtt" | "tcp" => (Transport::Tcp, 1883),
            "mqtts" | "ssl" | "tls" => (Transport::Tls, 8883),
            "ws" => (Transport::Ws { path }, 80),
            "wss" => (Transport::Wss { path }, 443),
            scheme => {
                return Err(format!(
                    "`{scheme}` is an unknown scheme; valid are mqtt, mqtts, ws, wss and unix"
                ));
            }
        };
        let port = url.port.unwrap_or(port);
        if url.host.is_empty() || url.user.is_some() || port == 0 {
            return Err(wrong("has no valid host and port"));
        }
        let address = format!("{}:{port}", url.bracketed_host());
        Ok(Self { address, transport: (!is_bare).then_some(transport) })
    }
}

impl Scenario {
    /// Replaces the scenario's brokers. One broker of the scenario takes all targets as its
    /// addresses; several take one each, in turn. Without targets only `tls` and `transport`
    /// are put over.
    pub fn aim(
        &mut self,
        targets: &[Target],
        transport: Option<&Transport>,
        tls: Option<&Tls>,
    ) -> Result<(), String> {
        if self.brokers_distinct && !targets.is_empty() && targets.len() < self.brokers.len() {
            let (needs, has) = (self.brokers.len(), targets.len());
            return Err(format!("the scenario needs {needs} different brokers, got {has}"));
        }
        let only = self.brokers.len() == 1;
        for (n, broker) in self.brokers.iter_mut().enumerate() {
            if !targets.is_empty() {
                let own: Vec<&Target> =
                    if only { targets.iter().collect() } else { vec![&targets[n % targets.len()]] };
                broker.aim(&own);
            }
            if let Some(transport) = transport {
                broker.transport = transport.clone();
            }
            match tls {
                Some(tls) if broker.transport.is_tls() => {
                    broker.tls = Tls { resume: broker.tls.resume || tls.resume, ..tls.clone() };
                }
                // What the file says of certificates is not for another transport.
                _ if !broker.transport.is_tls() => broker.tls = Tls::default(),
                _ => {}
            }
        }
        match tls.is_some() && !self.brokers.iter().any(|broker| broker.transport.is_tls()) {
            true => Err("certificates, --insecure, --server-name and --ciphers need --tls, or a \
                         broker with mqtts:// or wss://"
                .to_owned()),
            false => Ok(()),
        }
    }

    /// `factor` times as fast: delays, spreads and stages shorter, rates higher; timeouts,
    /// keep-alives and expiries as they are.
    #[must_use]
    pub fn faster(&self, factor: f64) -> Self {
        let shorter = |us: u64| (us as f64 / factor).round() as u64;
        let mut scenario = self.clone();
        for stage in &mut scenario.stages {
            stage.duration_us = stage.duration_us.map(shorter);
        }
        scenario.warm_up_us = scenario.warm_up_us.map(shorter);
        scenario.cool_down_us = scenario.cool_down_us.map(shorter);
        scenario.each_command_mut(&mut |command| match command {
            Command::Delay(delay) => delay.duration_us = shorter(delay.duration_us),
            Command::Stall { duration_us } => *duration_us = shorter(*duration_us),
            Command::Publish(publish) => {
                if let Some(rate) = &mut publish.pace.rate {
                    rate.per_us = shorter(rate.per_us).max(1);
                }
            }
            Command::For(repeat) => {
                if let Some(rate) = &mut repeat.rate {
                    rate.per_us = shorter(rate.per_us).max(1);
                }
            }
            _ => {}
        });
        scenario
    }

    /// Sets every linear spread to `duration_us`.
    #[must_use]
    pub fn with_ramps(&self, duration_us: u64) -> Self {
        let mut scenario = self.clone();
        scenario.each_command_mut(&mut |command| {
            if let Command::Delay(delay) = command
                && matches!(delay.spread, Spread::Linear | Spread::LinearDown)
            {
                delay.duration_us = duration_us;
            }
        });
        scenario
    }
}

impl Broker {
    fn aim(&mut self, targets: &[&Target]) {
        self.addresses = targets.iter().map(|target| target.address.clone()).collect();
        if let Some(transport) = targets.first().and_then(|target| target.transport.clone()) {
            self.transport = transport;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::find;
    use crate::scenario::Choice;

    #[test]
    fn addresses() {
        let address = |text: &str| Target::parse(text).map(|target| target.address);
        assert_eq!(address("h").unwrap(), "h:1883");
        assert_eq!(address("h:5").unwrap(), "h:5");
        assert_eq!(address("mqtts://h").unwrap(), "h:8883");
        assert_eq!(address("::1").unwrap(), "[::1]:1883");
        assert_eq!(address("[::1]:99").unwrap(), "[::1]:99");
        let ws = Target::parse("ws://h:8083/x").unwrap();
        assert_eq!(
            (ws.address.as_str(), ws.transport),
            ("h:8083", Some(Transport::Ws { path: "/x".into() }))
        );
        let unix = Target::parse("unix:///run/q.sock").unwrap();
        assert_eq!((unix.address.as_str(), unix.transport), ("/run/q.sock", Some(Transport::Unix)));
        for bad in ["", ":1883", "h:0", "h:99999", "http://h", "unix://q.sock"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    fn scenario(id: &str) -> Scenario {
        find(id, &Choice::default()).unwrap().scenario
    }

    #[test]
    fn one_broker_takes_all_addresses_several_take_one_each() {
        let targets = ["a:1", "b:2"].map(|text| Target::parse(text).unwrap());
        let mut one = scenario("MB-B1");
        one.aim(&targets, None, None).unwrap();
        assert_eq!(one.brokers[0].addresses, ["a:1", "b:2"]);
        let mut two = scenario("SW-1");
        two.aim(&targets[..1], None, None).unwrap();
        assert_eq!(two.brokers[1].addresses, ["a:1"]);
        let mut bridge = scenario("XR-4");
        assert!(bridge.aim(&targets[..1], None, None).unwrap_err().contains("different brokers"));
        bridge.aim(&targets, None, None).unwrap();
        assert_eq!(bridge.brokers[1].addresses, ["b:2"]);
    }

    #[test]
    fn a_steady_stage_has_a_warm_up_and_a_cool_down_unless_it_says_otherwise() {
        let margins = |scenario: &Scenario| {
            let all = scenario.stages.iter().map(|stage| scenario.margins_of(stage));
            all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let plain = scenario("MB-B1");
        assert_eq!(margins(&plain), (0, 0), "nobody asked for them");
        assert_eq!(margins(&plain.with_margins()), (10_000_000, 2_000_000));
        let short = plain.with_duration(4_000_000).with_margins();
        assert_eq!(margins(&short), (400_000, 400_000));
        assert_eq!(margins(&plain.with_duration(900_000).with_margins()), (0, 0));
        let said = Scenario { warm_up_us: Some(60_000_000), cool_down_us: Some(0), ..plain };
        assert_eq!(margins(&said.with_margins()), (60_000_000, 0));
        assert_eq!(margins(&said.faster(10.0)), (6_000_000, 0));
        // What a client does once would be another thing elsewhere.
        assert_eq!(margins(&scenario("HM-200M-even").with_margins()), (0, 0));
    }

    #[test]
    fn faster_shortens_times_and_raises_rates() {
        let fast = scenario("HM-200M-even").faster(20.0);
        assert_eq!(fast.estimate().publishes_per_sec, Some(10_000_000.0));
        let Command::Delay(delay) = &fast.stages[0].life_cycles[0].steps[0].command else {
            panic!("a delay expected");
        };
        assert_eq!(delay.duration_us, 10_000_000);
        let ramped = scenario("EG-1").with_ramps(5_000_000);
        ramped.each_command(&mut |_, _, command| {
            if let Command::Delay(delay) = command {
                assert_eq!(delay.duration_us, 5_000_000);
            }
        });
    }
}
