//! Which of a broker's addresses a client uses, and where it goes when that one does not serve it.
//!
//! A round tries each address once, the one after the present one first, at most
//! [`PAUSE_NS_MAX`] apart. After a round the client waits as its command says (`retry_interval`, or
//! the reconnect policy up to [`ROUND_PAUSE_US_MAX`]), and a command without either gives up then.

use client::Route;
use codec::{Properties, Property, Reason};

use super::client::{Client, Extra};
use super::context::Context;
use super::pool::endpoint;
use flock_model::{Broker, Connect, Failover, Target};

/// A client's way through the addresses of its broker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    /// Steps from the client's first address.
    moves: u16,
    /// Addresses of this round that have been tried.
    tried: u16,
}

/// Why an attempt failed, as far as it matters for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The address does not serve just now: another may.
    Address,
    /// The broker does not want this client, and no other address will.
    Client,
}

impl Failure {
    /// Of a CONNACK. MQTT 3.1.1's code 3 is 0x88 here.
    pub(super) fn of(reason: Reason) -> Self {
        match reason {
            Reason::SERVER_UNAVAILABLE
            | Reason::SERVER_BUSY
            | Reason::USE_ANOTHER_SERVER
            | Reason::SERVER_MOVED => Self::Address,
            _ => Self::Client,
        }
    }
}

impl Client {
    /// The route of the next attempt.
    pub(super) fn route<'a>(&'a self, command: &Connect, ctx: &'a Context) -> &'a Route {
        let elsewhere = self.extra.as_ref().and_then(|extra| extra.elsewhere.as_ref());
        if let Some(elsewhere) = elsewhere {
            return elsewhere;
        }
        let routes = &ctx.routes[self.broker_of(command)];
        &routes[(self.index as usize + usize::from(self.way.moves)) % routes.len()]
    }

    fn broker_of(&self, command: &Connect) -> usize {
        command.brokers[self.index as usize % command.brokers.len()].index()
    }

    /// How many addresses there are to choose from.
    fn addresses(&self, command: &Connect, ctx: &Context) -> u16 {
        match command.failover {
            Failover::Off => 1,
            _ => u16::try_from(ctx.routes[self.broker_of(command)].len()).unwrap_or(u16::MAX),
        }
    }

    /// Whether another broker than the last one may answer.
    pub(super) fn has_choice(&self, ctx: &Context) -> bool {
        let is_elsewhere = self.extra.as_ref().is_some_and(|extra| extra.elsewhere.is_some());
        let command = self.connect_command(ctx);
        is_elsewhere || command.is_some_and(|command| self.addresses(command, ctx) > 1)
    }

    /// How long an attempt may take: one that comes back does not wait for an address that hangs
    /// while another may serve.
    pub(super) fn attempt_us(&self, command: &Connect, is_again: bool, ctx: &Context) -> u64 {
        if is_again && self.addresses(command, ctx) > 1 {
            return command.timeout_us.min(ATTEMPT_US_MAX);
        }
        command.timeout_us
    }

    /// Moves on after an attempt that failed. The wait until the next, if this round has one.
    pub(super) fn move_on(&mut self, failure: Failure, ctx: &mut Context) -> Option<u64> {
        let has_moved = self.is_elsewhere_next();
        let command = self.connect_command(ctx)?;
        let addresses = self.addresses(command, ctx);
        if failure == Failure::Client || (addresses < 2 && !has_moved) {
            return None;
        }
        if !has_moved {
            self.way.moves = (self.way.moves + 1) % addresses;
        }
        self.way.tried += 1;
        // Servers that refer to each other do so once in a round.
        if self.way.tried >= addresses.max(2) {
            self.way.tried = 0;
            return None;
        }
        Some(ctx.random.below(PAUSE_NS_MAX))
    }

    /// The connection was up, and is lost: a new round begins.
    pub(super) fn move_away(&mut self, ctx: &Context) {
        self.way.tried = 0;
        let has_moved = self.is_elsewhere_next();
        let Some(command) = self.connect_command(ctx) else { return };
        if !has_moved {
            self.way.moves = (self.way.moves + 1) % self.addresses(command, ctx).max(1);
        }
    }

    /// Whether the next attempt goes to another address without a step to the next of the list: the
    /// broker named it, or the client was at a server outside the list, which it leaves.
    fn is_elsewhere_next(&mut self) -> bool {
        std::mem::take(&mut self.is_referred) || self.leave_elsewhere()
    }

    /// An address served the client.
    pub(super) fn arrive(&mut self) {
        self.way.tried = 0;
        self.is_referred = false;
    }

    /// The longest pause between two rounds.
    pub(super) fn round_pause_us_max(&self, policy_us: u64, ctx: &Context) -> u64 {
        match self.connect_command(ctx) {
            Some(command) if self.addresses(command, ctx) > 1 => policy_us.min(ROUND_PAUSE_US_MAX),
            _ => policy_us,
        }
    }

    fn leave_elsewhere(&mut self) -> bool {
        self.extra.as_mut().is_some_and(|extra| extra.elsewhere.take().is_some())
    }

    /// The broker named another server (0x9C, 0x9D): the next attempt goes there, if it is one of
    /// the addresses given, or any may be followed.
    pub(super) fn refer(&mut self, reason: Reason, properties: Properties<'_>, ctx: &mut Context) {
        if reason != Reason::USE_ANOTHER_SERVER && reason != Reason::SERVER_MOVED {
            return;
        }
        let found = properties.iter().find_map(|property| match property {
            Property::ServerReference(text) => Some(text),
            _ => None,
        });
        let Some(command) = self.connect_command(ctx) else { return };
        let (Some(references), true) = (found, command.failover != Failover::Off) else { return };
        let follows_any = command.failover == Failover::Any;
        let broker = self.broker_of(command);
        let model = &ctx.plan.scenario.brokers[broker];
        if let Some(at) = listed(references, &model.addresses) {
            let len = model.addresses.len();
            self.leave_elsewhere();
            self.way.moves = ((at + len - self.index as usize % len) % len) as u16;
            self.is_referred = true;
        } else if follows_any && let Some(route) = elsewhere(references, broker, ctx) {
            self.extra.get_or_insert_with(Box::<Extra>::default).elsewhere = Some(route);
            self.is_referred = true;
        } else {
            let told = format!(
                "not followed: Server Reference `{references}` is not one of the \
            given addresses"
            );
            ctx.tally.error("reference", &told, || self.id(&ctx.plan));
        }
    }
}

/// Position of the first of the servers, separated by spaces (MQTT-3.2.2.3.16), that is listed.
fn listed(references: &str, addresses: &[String]) -> Option<usize> {
    references.split(' ').find_map(|reference| {
        addresses.iter().position(|address| {
            let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
            address == reference || host == reference
        })
    })
}

/// A route to the first of the servers that can be had. Looking up a name stops the thread.
fn elsewhere(references: &str, broker: usize, ctx: &mut Context) -> Option<Route> {
    references.split(' ').find_map(|reference| {
        let key = (broker, reference.to_owned());
        if let Some(route) = ctx.elsewhere.get(&key) {
            return Some(route.clone());
        }
        if ctx.elsewhere.len() >= ELSEWHERE_MAX {
            return None;
        }
        let model: &Broker = &ctx.plan.scenario.brokers[broker];
        let target = Target::parse(reference).ok()?;
        let route = endpoint(model, &target.address).prepare().ok()?;
        ctx.elsewhere.insert(key, route.clone());
        Some(route)
    })
}

/// Between two addresses of a round, at most: clients that lost the same node do not come together.
const PAUSE_NS_MAX: u64 = 20_000_000;
/// Between two rounds, at most.
const ROUND_PAUSE_US_MAX: u64 = 1_000_000;
/// The longest attempt of a client that comes back and has another address.
const ATTEMPT_US_MAX: u64 = 5_000_000;
/// Servers that one thread was referred to and goes to; further ones are not followed.
const ELSEWHERE_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_found_by_address_or_by_host() {
        let addresses = ["a:1883", "b:1883", "b:1884"].map(String::from);
        assert_eq!(listed("b:1884", &addresses), Some(2));
        assert_eq!(listed("b", &addresses), Some(1));
        assert_eq!(listed("z:1 a:1883", &addresses), Some(0));
        assert_eq!(listed("b:9", &addresses), None);
    }

    #[test]
    fn a_refusal_of_the_client_is_no_reason_to_move() {
        for reason in [0x88, 0x89, 0x9C, 0x9D] {
            assert_eq!(Failure::of(Reason(reason)), Failure::Address, "{reason:#x}");
        }
        for reason in [0x80, 0x85, 0x87, 0x8A] {
            assert_eq!(Failure::of(Reason(reason)), Failure::Client, "{reason:#x}");
        }
    }
}
