//! What an authorization service says of the actions of a client.
//!
//! A packet that no rule decides stays where it is, and its connection is not read, until the
//! service has answered. A connection has one question at a time, so its packets keep their order.
//! An answer is for a connection and a question of it by number: one that comes late or twice, or
//! for an earlier connection of the client, is nobody's.
//!
//! Answers are remembered for a while, of each client so many at most. New rules and an operator
//! make a client forget them; who waits then asks again.

use std::collections::VecDeque;

use codec::{Publish, QoS};
use policy::{Action, Manner};
use session::Will;

use crate::log::store::Log;
use crate::parts::client::{Client, topic_of};
use crate::parts::verdicts::{Act, Asked, Verdict};
use crate::state::Context;
use crate::words::access_question::{AccessQuestion, ServiceAnswer};
use crate::words::reasons::check_sizes;

/// After a failure the service is asked about a will again, this much later.
const ASKS_AGAIN_MS: u64 = 5_000;

/// Questions that are asked for a connection that is gone: a publish behind them is denied.
const LATE_MAX: u8 = 16;

/// Answers about longer topics and filters are not remembered: such a topic is asked about each
/// time.
const TEXT_BYTES_MAX: usize = 1024;

impl Client {
    /// May it subscribe, by the rules, and where they leave it open, by the service?
    pub(crate) fn may_subscribe(&mut self, filter: &str, manner: Manner, cx: &Context) -> bool {
        self.grants.allows_as(self.identity(), Action::Subscribe, filter, manner)
            || self.grants.asks_service() && {
                let filter = topic::without_share(filter);
                self.take_found(Action::Subscribe, filter, manner, cx) == Some(Verdict::Allowed)
            }
    }

    /// What the service has said of this publish. None: nothing.
    #[cold]
    pub(crate) fn verdict_of(&mut self, publish: &Publish<'_>, cx: &Context) -> Option<Verdict> {
        let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
        let of_alias = self.topic_of_alias(publish);
        let topic = of_alias.as_deref().unwrap_or(publish.topic);
        self.take_found(Action::Publish, topic, manner, cx)
    }

    /// The answer to a question that was asked for one packet is used up by it.
    #[cold]
    fn take_found(
        &mut self,
        action: Action,
        topic: &str,
        manner: Manner,
        cx: &Context,
    ) -> Option<Verdict> {
        if !self.grants.is_undecided(self.identity(), action, topic, manner) {
            return None;
        }
        let verdicts = self.extras.as_mut().and_then(|extras| extras.verdicts.as_mut())?;
        if let Some((act, verdict)) = verdicts.settled.take()
            && act.is(action, topic, manner)
        {
            return Some(verdict);
        }
        let found = verdicts.find_remembered(action, topic, manner, cx.now_ms);
        cx.metrics.authorization_cache_hits.add(found.is_some().into());
        found
    }

    /// None: the packet has it.
    fn topic_of_alias(&self, publish: &Publish<'_>) -> Option<Box<str>> {
        publish.topic.is_empty().then(|| topic_of(self, publish).into())
    }

    /// Does this publish have to wait for the answer of the service? Then it is asked.
    #[cold]
    pub(crate) fn publish_waits_for_verdict(
        &mut self,
        cx: &mut Context,
        log: Option<&Log>,
        publish: &Publish<'_>,
    ) -> bool {
        let of_alias = self.topic_of_alias(publish);
        let topic = of_alias.as_deref().unwrap_or(publish.topic);
        // What is not a topic is refused without the service.
        if check_sizes(topic, publish.properties, &self.limits).is_err() {
            return false;
        }
        // What was taken already is answered without looking at it again.
        let is_repeat = publish.qos == QoS::ExactlyOnce
            && self.session.incoming.contains(publish.packet_id)
            && !(publish.retain && self.has_undone(log, publish.packet_id));
        let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
        !is_repeat && self.waits_for_verdict(cx, Action::Publish, topic, manner)
    }

    /// The same for a filter of a SUBSCRIBE.
    pub(crate) fn filter_waits_for_verdict(
        &mut self,
        cx: &mut Context,
        filter: &str,
        qos: u8,
    ) -> bool {
        let asks = self.grants.asks_service();
        if !asks || topic::parse_filter(filter, &self.limits.topic).is_err() {
            return false;
        }
        let manner = Manner { qos, retain: false };
        self.waits_for_verdict(cx, Action::Subscribe, topic::without_share(filter), manner)
    }

    fn waits_for_verdict(
        &mut self,
        cx: &mut Context,
        action: Action,
        topic: &str,
        manner: Manner,
    ) -> bool {
        if self.grants.allows_as(self.identity(), action, topic, manner)
            || !self.grants.is_undecided(self.identity(), action, topic, manner)
        {
            return false;
        }
        cx.flow.work.charge(self.grants.topic_units());
        let (now_ms, is_lost) = (cx.now_ms, self.is_lost());
        let verdicts = self.extras().verdicts();
        if verdicts.asked.is_none() {
            if verdicts.find(action, topic, manner, now_ms).is_some() {
                return false;
            }
            verdicts.late = verdicts.late.saturating_add(is_lost.into());
            if verdicts.late > LATE_MAX {
                return false;
            }
            self.ask(cx, Act::new(action, topic, manner), false);
        }
        self.stand_in_line(cx);
        true
    }

    /// A will that the service has to allow is none before.
    pub(crate) fn ask_about_will(&mut self, cx: &mut Context, will: Box<Will>) {
        let manner = Manner { qos: will.qos as u8, retain: will.retain };
        let act = Act::new(Action::Publish, &will.topic, manner);
        let verdicts = self.extras().verdicts();
        (verdicts.will, verdicts.asks_again_ms) = (Some(will), 0);
        self.ask(cx, act, true);
    }

    /// The will of a CONNECT: one that the service decides about, or one that needs no answer.
    pub(crate) fn split_will(
        &self,
        will: Option<Box<Will>>,
    ) -> (Option<Box<Will>>, Option<Box<Will>>) {
        match will {
            Some(will) if self.is_will_undecided(&will) => (Some(will), None),
            will => (None, will),
        }
    }

    /// Is it for the service to decide whether the client may have this will?
    pub(crate) fn is_will_undecided(&self, will: &Will) -> bool {
        let manner = Manner { qos: will.qos as u8, retain: will.retain };
        self.grants.asks_service()
            && self.grants.is_undecided(self.identity(), Action::Publish, &will.topic, manner)
    }

    fn ask(&mut self, cx: &mut Context, act: Act, is_for_will: bool) {
        let principal = self.principal.as_ref();
        let attributes = principal.map(|own| own.attributes.clone()).unwrap_or_default();
        let (slot, connection) = (self.key.slot(), self.connection);
        let Some(link) = self.session.link() else { return };
        let (peer, version) = (link.peer.clone(), link.version());
        let (scope, client_id, username) = (self.scope, self.id.clone(), self.username.clone());
        let verdicts = self.extras().verdicts();
        verdicts.last_number = verdicts.last_number.wrapping_add(1);
        let number = verdicts.last_number;
        let Act { publishes, qos, retain, topic } = act.clone();
        verdicts.settled = None;
        verdicts.asked = Some(Asked { number, act, is_for_will, is_void: false });
        self.recharge();
        cx.metrics.authorization_questions.add(1);
        cx.effects.questions.push(AccessQuestion {
            slot,
            connection,
            number,
            publishes,
            topic,
            qos,
            retain,
            scope,
            client_id,
            username,
            peer,
            version,
            attributes,
        });
    }

    /// Takes an answer. None: it is for nobody. Some: the connection may go on, and has this will.
    pub(crate) fn take_verdict(
        &mut self,
        cx: &mut Context,
        number: u32,
        answer: ServiceAnswer,
    ) -> Option<Option<(Box<Will>, bool)>> {
        let has_room = !self.charged.lacks_room(TEXT_BYTES_MAX as u64);
        let verdicts = self.extras.as_mut()?.verdicts.as_mut()?;
        let asked = verdicts.asked.take_if(|asked| asked.number == number)?;
        cx.count_verdict(answer);
        let Asked { act, is_for_will, is_void, .. } = asked;
        let will = if is_for_will { verdicts.will.take() } else { None };
        if is_void {
            return Some(will.and_then(|will| self.look_again(cx, will)));
        }
        let settings = cx.shared.settings.service.as_ref();
        let verdict = match answer {
            ServiceAnswer::Allow => Verdict::Allowed,
            ServiceAnswer::Ignore if settings.is_some_and(|it| it.no_match_allows) => {
                Verdict::Allowed
            }
            ServiceAnswer::Deny | ServiceAnswer::Ignore => Verdict::Denied,
            ServiceAnswer::Failed => Verdict::Unknown,
        };
        if !is_for_will {
            verdicts.settled = Some((act.clone(), verdict));
        } else if verdict == Verdict::Unknown {
            (verdicts.will, verdicts.asks_again_ms) = (will, cx.now_ms + ASKS_AGAIN_MS);
            self.arm_timer(cx);
            return Some(None);
        }
        let settings = settings.filter(|it| {
            verdict != Verdict::Unknown && it.holds_ms > 0 && act.topic.len() <= TEXT_BYTES_MAX
        });
        let allows = verdict == Verdict::Allowed;
        if let Some(settings) = settings.filter(|_| has_room) {
            verdicts.remember(act, allows, cx.now_ms, settings);
        }
        self.recharge();
        Some(will.map(|will| (will, allows)))
    }

    /// It could not be asked about the will of the connection: that is done again, when no other
    /// question is out.
    pub(crate) fn ask_again_if_due(&mut self, cx: &mut Context) {
        if self.asks_again_ms() > cx.now_ms {
            return;
        }
        let verdicts = self.extras().verdicts();
        if verdicts.asked.is_some() {
            verdicts.asks_again_ms = cx.now_ms + ASKS_AGAIN_MS;
        } else if let Some(will) = verdicts.will.take() {
            self.ask_about_will(cx, will);
        }
    }

    /// Rules have changed. A will that they do not decide any more is none before the service has
    /// allowed it. True: there was one.
    pub(crate) fn ask_about_known_will(&mut self, cx: &mut Context) -> bool {
        if !self.session.is_online() {
            return false;
        }
        let will = self.will.take();
        let (undecided, will) = self.split_will(will);
        self.will = will;
        match undecided {
            Some(will) => {
                self.ask_about_will(cx, will);
                true
            }
            None => false,
        }
    }

    /// Rules have changed while the service was asked about a will. Some: they decide now, when it
    /// is published.
    fn look_again(&mut self, cx: &mut Context, will: Box<Will>) -> Option<(Box<Will>, bool)> {
        if self.is_will_undecided(&will) {
            self.ask_about_will(cx, will);
            return None;
        }
        Some((will, true))
    }

    /// What was answered holds no more. A question that waits is asked again.
    pub(crate) fn forget_verdicts(&mut self) {
        let verdicts = self.extras.as_mut().and_then(|extras| extras.verdicts.as_mut());
        let Some(verdicts) = verdicts else { return };
        verdicts.settled = None;
        verdicts.remembered = VecDeque::new();
        if let Some(asked) = &mut verdicts.asked {
            asked.is_void = true;
        }
        self.recharge();
    }
}

impl Context {
    fn count_verdict(&self, answer: ServiceAnswer) {
        let metrics = &self.metrics;
        let counter = match answer {
            ServiceAnswer::Allow => &metrics.authorization_allowed,
            ServiceAnswer::Deny => &metrics.authorization_denied,
            ServiceAnswer::Ignore => &metrics.authorization_ignored,
            ServiceAnswer::Failed => &metrics.authorization_failed,
        };
        counter.add(1);
    }
}
