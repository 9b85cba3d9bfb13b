//! A step that connects, and the defaults of `[connect]` behind it.

use std::ops::Range;

use toml::Spanned;

use super::super::credentials::credentials;
use super::super::format;
use super::super::units::{Time, show_time};
use super::super::{ScenarioError, v5_keys};
use super::{Lowered, Lowering, pairs};
use crate::model::{BrokerId, Command, Connect, Pattern, Reconnect, Scenario, TopicsId, Who, Will};

/// Username and password.
type Login = (Option<Pattern>, Option<Pattern>);

impl Lowering<'_> {
    pub(super) fn connect(
        &self,
        who: Who,
        step: &format::Connect,
        span: Range<usize>,
    ) -> Lowered<Connect> {
        let file = &self.parsed.connect;
        if step.version.is_some() {
            let message = "all clients of a group speak one `version`: set it in [clients.NAME], \
                           or in [connect] for all groups";
            return Err(self.error(span, message));
        }
        let default = Connect::default();
        let brokers = match step.brokers.as_ref().or(file.brokers.as_ref()) {
            Some(names) => self.broker_ids(names)?,
            None => (0..self.brokers.len().max(1) as u32).map(BrokerId).collect(),
        };
        let secs = |own: &Option<Spanned<Time>>, shared: &Option<Spanned<Time>>, name, default| {
            let given = own.as_ref().or(shared.as_ref());
            given.map_or(Ok(default), |time| self.whole_secs(time, name))
        };
        let keep_alive = secs(&step.keep_alive, &file.keep_alive, "keep_alive", 60)?;
        let keep_alive_secs = u16::try_from(keep_alive).map_err(|_| {
            let given = show_time(u64::from(keep_alive) * 1_000_000);
            ScenarioError::new(
                self.file,
                format!("`keep_alive` must be at most 65535s, got {given}"),
            )
        })?;
        // What all groups share holds for those whose version has it.
        let is_v5 = self.speaks_v5(who);
        let clean_start = step.clean_start.or(file.clean_start).unwrap_or(true);
        let shared_expiry = file.session_expiry.clone().filter(|_| is_v5 || !clean_start);
        let properties =
            step.user_properties.as_ref().or(file.user_properties.as_ref().filter(|_| is_v5));
        let (username, password) = self.login(step)?;
        let reconnects = step.reconnect.or(file.reconnect).unwrap_or(false);
        let retry_interval = step.retry_interval.as_ref().or(file.retry_interval.as_ref());
        let retries = step.retries.or(file.retries).unwrap_or(0);
        if let (Some(given), 0) = (&step.retry_interval, retries) {
            return Err(self.error(given.span(), "`retry_interval` needs `retries` above 0"));
        }
        Ok(Connect {
            brokers,
            timeout_us: step.timeout.or(file.timeout).map_or(default.timeout_us, |time| time.0),
            keep_alive_secs,
            clean_start,
            session_expiry_secs: secs(&step.session_expiry, &shared_expiry, "session_expiry", 0)?,
            receive_max: step.receive_max.or(file.receive_max.filter(|_| is_v5)),
            username,
            password,
            will: self.will_of(step, is_v5)?,
            user_properties: pairs(properties),
            retries,
            retry_interval_us: retry_interval
                .map_or(default.retry_interval_us, |time| time.get_ref().0),
            fresh_id: step.fresh_id.or(file.fresh_id).unwrap_or(false),
            reconnect: reconnects.then(Reconnect::default),
            failover: step.failover.or(file.failover).unwrap_or_default(),
        })
    }

    /// A step that names somebody does so in one of two ways, and goes over both of the file's.
    fn login(&self, step: &format::Connect) -> Lowered<Login> {
        let named = |table: &format::Connect| table.username.is_some() || table.password.is_some();
        let file = &self.parsed.connect;
        for table in [step, file] {
            if let (Some(list), true) = (&table.credentials, named(table)) {
                let message = "`credentials` excludes `username` and `password`";
                return Err(self.error(list.span(), message));
            }
        }
        let shared = file.credentials.as_ref().filter(|_| !named(step));
        if let Some(name) = step.credentials.as_ref().or(shared) {
            let found = (self.read)(name.get_ref()).and_then(|text| credentials(&text));
            let found = found.map_err(|message| self.error(name.span(), message))?;
            return Ok((Some(found.0), Some(found.1)));
        }
        let pattern = |own: &Option<Spanned<String>>, shared: &Option<Spanned<String>>| {
            own.as_ref().or(shared.as_ref()).map(|source| self.pattern(source)).transpose()
        };
        let username = pattern(&step.username, &file.username)?;
        Ok((username, pattern(&step.password, &file.password)?))
    }

    fn will_of(&self, step: &format::Connect, is_v5: bool) -> Lowered<Option<Will>> {
        if let Some(own) = &step.will {
            return self.will(own).map(Some);
        }
        let Some(shared) = &self.parsed.connect.will else { return Ok(None) };
        let will = self.will(shared)?;
        Ok(Some(if is_v5 { will } else { Will { delay_secs: 0, expiry_secs: None, ..will } }))
    }

    fn will(&self, will: &format::Will) -> Lowered<Will> {
        let secs = |given: &Option<Spanned<Time>>, name| {
            given.as_ref().map(|time| self.whole_secs(time, name)).transpose()
        };
        let payload = self.payload(will.payload.as_ref(), will.topics.span())?;
        if payload.is_random() {
            let message = "the payload of a will is not random: use `bytes` or `text`";
            return Err(self.error(will.topics.span(), message));
        }
        Ok(Will {
            topics: TopicsId(self.find(&self.topics, &will.topics, "topic group")?),
            assign: will.assign,
            payload,
            qos: will.qos,
            retain: will.retain,
            delay_secs: secs(&will.delay, "delay")?.unwrap_or(0),
            expiry_secs: secs(&will.expiry, "expiry")?,
        })
    }

    /// MQTT counts in seconds.
    pub(super) fn whole_secs(&self, given: &Spanned<Time>, name: &str) -> Lowered<u32> {
        let us = given.get_ref().0;
        if !us.is_multiple_of(1_000_000) {
            let message = format!("`{name}` must be whole seconds, got {}", show_time(us));
            return Err(self.error(given.span(), message));
        }
        Ok(u32::try_from(us / 1_000_000).unwrap_or(u32::MAX))
    }

    /// Refuses what `[connect]` says and no step takes from it.
    pub(super) fn check_shared(&self, scenario: &Scenario) -> Lowered<()> {
        let file = &self.parsed.connect;
        let mut all = Vec::new();
        scenario.each_command(&mut |_, _, command| {
            if let Command::Connect(connect) = command {
                all.push(connect);
            }
        });
        let is_given =
            |time: &Option<Spanned<Time>>| time.as_ref().is_some_and(|time| time.get_ref().0 > 0);
        let is_will_given = |will: &format::Will| is_given(&will.delay) || will.expiry.is_some();
        let any = |is: fn(&&Connect) -> bool| all.is_empty() || all.iter().any(is);
        let of_v5 = [
            (
                "session_expiry",
                is_given(&file.session_expiry),
                any(|it| it.session_expiry_secs > 0),
            ),
            ("receive_max", file.receive_max.is_some(), any(|it| it.receive_max.is_some())),
            (
                "user_properties",
                file.user_properties.as_ref().is_some_and(|pairs| !pairs.is_empty()),
                any(|it| !it.user_properties.is_empty()),
            ),
            (
                "will",
                file.will.as_ref().is_some_and(is_will_given),
                any(|it| it.will.as_ref().is_some_and(|will| v5_keys::of_will(will).is_some())),
            ),
        ];
        if let Some((name, ..)) = of_v5.into_iter().find(|(_, given, taken)| *given && !taken) {
            let message = match name {
                "will" => "`delay` and `expiry` of the will in [connect] have",
                _ => &format!("`{name}` in [connect] has"),
            };
            let why = "no effect: no client takes it, or all speak MQTT 3";
            return Err(ScenarioError::new(self.file, format!("{message} {why}")));
        }
        match &file.retry_interval {
            Some(given) if !any(|it| it.retries > 0) => {
                Err(self.error(given.span(), "`retry_interval` needs `retries` above 0"))
            }
            _ => Ok(()),
        }
    }
}
