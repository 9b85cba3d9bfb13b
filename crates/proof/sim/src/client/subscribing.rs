//! The subscribing side: what is asked for, and what the broker has confirmed.

use std::collections::BTreeMap;

use codec::{
    FilterBuf, Packet, Properties, QoS, Reason, Subscribe, SubscribeOptions, TopicBuf, Unsubscribe,
};

use super::ModelClient;
use crate::oracle::Oracle;

/// The packet id of requests that a planted bug makes.
const FORGETTING: u16 = u16::MAX;

/// A filter that the client may be subscribed to.
#[derive(Clone, Debug)]
pub struct Filter {
    name: String,
    qos: QoS,
    is_wanted: bool,
    /// The broker has it as the client wants it.
    is_confirmed: bool,
}

impl Filter {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

#[derive(Debug, Default)]
pub(super) struct Subscribing {
    pub(super) filters: Vec<Filter>,
    /// Requests under way: packet id, and the filters by their index.
    requests: BTreeMap<u16, Vec<usize>>,
}

impl Filter {
    pub(super) fn new(name: &str, qos: QoS) -> Self {
        Self { name: name.into(), qos, is_wanted: true, is_confirmed: false }
    }
}

impl Subscribing {
    pub(super) fn contains(&self, packet_id: u16) -> bool {
        self.requests.contains_key(&packet_id)
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn forget_requests(&mut self) {
        self.requests.clear();
    }

    /// The session is new and has no subscriptions.
    pub(super) fn start_over(&mut self) {
        for filter in &mut self.filters {
            filter.is_confirmed = !filter.is_wanted;
        }
    }

    fn missing(&self, is_wanted: bool) -> Vec<usize> {
        let indexes = 0..self.filters.len();
        indexes
            .filter(|index| {
                let filter = &self.filters[*index];
                filter.is_wanted == is_wanted && !filter.is_confirmed
            })
            .collect()
    }
}

impl ModelClient {
    pub(crate) const fn filter_count(&self) -> usize {
        self.subscribing.filters.len()
    }

    /// Asks for what the session should have and is not known to.
    pub(super) fn request_missing(&mut self, oracle: &mut Oracle) {
        let wanted = self.subscribing.missing(true);
        if !wanted.is_empty() {
            self.subscribe(wanted, oracle);
        }
        for unwanted in self.subscribing.missing(false) {
            self.unsubscribe(unwanted, oracle);
        }
    }

    /// Subscribes again, or changes its mind about one of its filters. `forgets`: a planted bug, by
    /// which what waits under the old options is lost.
    pub fn reconsider(&mut self, number: usize, forgets: bool, oracle: &mut Oracle) {
        if !self.is_ready() || !self.subscribing.is_quiet() {
            return;
        }
        let index = number % self.subscribing.filters.len();
        let filter = &mut self.subscribing.filters[index];
        let is_toggled = filter.is_confirmed && number.is_multiple_of(2);
        // The group must not end.
        let is_group = filter.name.starts_with("$share/") && self.number == 0;
        if is_toggled && !is_group {
            filter.is_wanted = !filter.is_wanted;
            filter.is_confirmed = false;
        } else if filter.is_confirmed && number % 3 == 1 && !filter.name.starts_with("$share/") {
            filter.qos = match filter.qos {
                QoS::AtMostOnce => QoS::AtLeastOnce,
                QoS::AtLeastOnce => QoS::ExactlyOnce,
                QoS::ExactlyOnce => QoS::AtMostOnce,
            };
            filter.is_confirmed = false;
            if forgets {
                self.forget_waiting(index);
            }
        }
        match self.subscribing.filters[index].is_wanted {
            true => self.subscribe(vec![index], oracle),
            false => self.unsubscribe(index, oracle),
        }
    }

    fn forget_waiting(&mut self, index: usize) {
        let mut filters = TopicBuf::new();
        filters.push(&self.subscribing.filters[index].name);
        let (packet_id, filters) = (FORGETTING, filters.as_topics());
        let properties = Properties::EMPTY;
        self.write(&Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }));
    }

    fn subscribe(&mut self, indexes: Vec<usize>, oracle: &mut Oracle) {
        let packet_id = self.take_packet_id();
        let mut filters = FilterBuf::new();
        for index in &indexes {
            let Filter { name, qos, .. } = &self.subscribing.filters[*index];
            // MQTT-3.8.3-4: a shared subscription has no No Local.
            let no_local = self.no_local && !name.starts_with("$share/");
            filters.push(name, SubscribeOptions { no_local, ..SubscribeOptions::new(*qos) });
            oracle.on_subscribing(self.number, name, *qos, self.is_persistent());
        }
        if self.no_local {
            oracle.on_no_local(self.number);
        }
        self.subscribing.requests.insert(packet_id, indexes);
        let (properties, filters) = (Properties::EMPTY, filters.as_filters());
        self.write(&Packet::Subscribe(Subscribe { packet_id, properties, filters }));
    }

    fn unsubscribe(&mut self, index: usize, oracle: &mut Oracle) {
        let packet_id = self.take_packet_id();
        let name = self.subscribing.filters[index].name.clone();
        oracle.on_unsubscribing(self.number, &name);
        let mut filters = TopicBuf::new();
        filters.push(&name);
        self.subscribing.requests.insert(packet_id, vec![index]);
        let (properties, filters) = (Properties::EMPTY, filters.as_topics());
        self.write(&Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }));
    }

    pub(super) fn on_suback(
        &mut self,
        packet_id: u16,
        reasons: &[u8],
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let Some(indexes) = self.subscribing.requests.remove(&packet_id) else {
            return Err(format!("{}: SUBACK for nothing", self.id));
        };
        if indexes.len() != reasons.len() {
            return Err(format!("{}: SUBACK with {} reasons", self.id, reasons.len()));
        }
        for (index, reason) in indexes.into_iter().zip(reasons) {
            let filter = &mut self.subscribing.filters[index];
            if !Reason(*reason).is_error() {
                filter.is_confirmed = true;
                self.fate.on_promise();
                if let Some(wire) = &self.wire {
                    oracle.on_will_firm(wire.arrival);
                }
                oracle.on_subscribed(self.number, &filter.name);
            } else if !oracle.may_refuse_filter(Reason(*reason)) {
                return Err(format!("{}: subscription refused", self.id));
            }
        }
        Ok(())
    }

    pub(super) fn on_unsuback(
        &mut self,
        packet_id: u16,
        reasons: &[u8],
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        if packet_id == FORGETTING {
            return Ok(());
        }
        let Some(indexes) = self.subscribing.requests.remove(&packet_id) else {
            return Err(format!("{}: UNSUBACK for nothing", self.id));
        };
        if reasons.iter().any(|reason| Reason(*reason).is_error()) {
            return match oracle.terms.may_fail {
                true => Ok(()),
                false => Err(format!("{}: unsubscribing refused", self.id)),
            };
        }
        for index in indexes {
            let filter = &mut self.subscribing.filters[index];
            filter.is_confirmed = true;
            oracle.on_unsubscribed(self.number, &filter.name);
        }
        Ok(())
    }
}
