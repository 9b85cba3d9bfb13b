//! Swarm's `connect`, with the will.

use super::super::xml::{Element, credentials};
use super::{Commands, Lowered};
use crate::model::{
    Assign, BrokerId, Connect, Failover, Pattern, QoS, Reconnect, TopicGroup, TopicsId, Version,
    Will,
};

impl Commands<'_, '_> {
    /// A value that a client can send only if it speaks MQTT 5.
    pub(super) fn of_v5<T>(&self, element: &Element, name: &str, value: Option<T>) -> Option<T> {
        let is_v5 = self.scenario.group(self.group).version == Version::V5;
        if value.is_some() && !is_v5 {
            let told = format!("`{name}` of <{}>", element.name);
            self.names.left_out.borrow_mut().insert(told);
        }
        value.filter(|_| is_v5)
    }

    pub(super) fn connect(&mut self, element: &Element) -> Lowered<Connect> {
        let names = self.names;
        names.children(element, &["will", "userProperties"])?;
        let provider = element.attribute("securityProvider").unwrap_or("standard");
        if provider != "standard" {
            let message = format!(
                "the security provider `{provider}` is an extension of Swarm: only `standard` is supported"
            );
            return Err(names.wrong(element, "securityProvider", message));
        }
        let brokers = match element.attribute("broker") {
            None => (0..self.scenario.brokers.len() as u32).map(BrokerId).collect(),
            Some(ids) => ids
                .split_whitespace()
                .map(|id| names.reference(element, "broker", id, "broker").map(BrokerId))
                .collect::<Lowered<Vec<_>>>()?,
        };
        let (user, password) = credentials(element).map_err(|name| {
            names.wrong(element, name, "`credentials` excludes `username` and `password`")
        })?;
        let keep_alive_secs = names.secs(element, "keepAlive")?.unwrap_or(60);
        let will = element.child("will").map(|will| self.will(will)).transpose()?;
        let clean_start = names.flag(element, "cleanStart", true)?;
        let expiry = names.secs(element, "sessionExpiry")?;
        // A session of MQTT 3 that does not begin anew lasts.
        let lasts = expiry.filter(|_| !clean_start);
        let expiry = lasts.or_else(|| self.of_v5(element, "sessionExpiry", expiry));
        let connect = Connect {
            brokers,
            timeout_us: names.time(element, "timeOut")?.unwrap_or(60_000_000),
            keep_alive_secs: u16::try_from(keep_alive_secs).map_err(|_| {
                names.wrong(
                    element,
                    "keepAlive",
                    format!("the keep-alive must be at most 65,535 s, got {keep_alive_secs} s"),
                )
            })?,
            clean_start,
            session_expiry_secs: expiry.unwrap_or(0),
            receive_max: None,
            username: user.map(|user| Pattern::literal(&user)),
            password: password.map(|password| Pattern::literal(&password)),
            will,
            user_properties: self.user_properties(element)?,
            retries: u32::try_from(names.number(element, "retries", 0)?).unwrap_or(u32::MAX),
            retry_interval_us: names.time(element, "retryInterval")?.unwrap_or(1_000_000),
            fresh_id: false,
            reconnect: names.flag(element, "autoReconnect", false)?.then(Reconnect::default),
            failover: Failover::default(),
        };
        names.take_rest(element);
        Ok(connect)
    }

    fn user_properties(&self, element: &Element) -> Lowered<Vec<(String, String)>> {
        let Some(list) = element.child("userProperties") else { return Ok(Vec::new()) };

        self.names.children(list, &["userProperty"])?;
        let pair = |property: &Element| {
            let name = self.names.required(property, "name")?.to_owned();
            Ok((name, self.names.required(property, "value")?.to_owned()))
        };
        let pairs: Lowered<Vec<_>> = list.each_child().map(pair).collect();
        Ok(self.of_v5(element, "userProperties", Some(pairs?)).unwrap_or_default())
    }

    fn will(&mut self, element: &Element) -> Lowered<Will> {
        let names = self.names;
        names.children(element, &[])?;
        let topics = match element.attribute("topicGroup") {
            Some(id) => TopicsId(names.reference(element, "topicGroup", id, "topic group")?),
            None => self.own_will_topics(),
        };
        let will = Will {
            topics,
            assign: Assign::Partition,
            payload: self.payload(element)?,
            qos: names.qos(element, QoS::AtMostOnce)?,
            retain: names.flag(element, "retain", false)?,
            delay_secs: 0,
            expiry_secs: self.of_v5(
                element,
                "messageExpiry",
                names.secs(element, "messageExpiry")?,
            ),
        };
        names.take_rest(element);
        Ok(will)
    }

    /// The schema lets a will do without a topic group, MQTT not without a topic: each client gets
    /// one of its own, `will/CLIENT`.
    fn own_will_topics(&mut self) -> TopicsId {
        let group = self.scenario.group(self.group);
        let id = format!("will/{}", group.id);
        if let Some(at) = self.scenario.topics.iter().position(|topics| topics.id == id) {
            return TopicsId(at as u32);
        }
        let topics = TopicGroup {
            id,
            names: group.client_ids.prefixed("will/"),
            offset: group.offset,
            count: group.count,
            scales: group.scales,
        };
        self.scenario.topics.push(topics);
        TopicsId(self.scenario.topics.len() as u32 - 1)
    }
}
