//! Questions that change nothing.

use policy::{Action, ClientLocation, Grants, Identity};

use crate::Shard;
use crate::life::connect::SEQUENCES_PER_MS;
use crate::parts::client::Client;
use crate::parts::groups::Group;
use crate::parts::groups::Groups;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Listed;
use crate::words::command::{
    Answer, Asker, ConnectionView, Explained, GroupView, MemberView, OwnedSubscription, PAGE_LOOKS,
    PAGE_ROWS, Page, Question, ReceiverView, SessionDetails, SessionView, SubscriptionPlace,
    SubscriptionView, Wanted, WantedSubscriptions, WillView,
};
use crate::words::member::Member;
use crate::words::options;
use crate::{GroupText, Name, Scope, SessionKey};

impl Shard {
    /// A look at a session counts as one at a subscription does.
    pub(crate) fn look_at_all_subscriptions(
        &mut self,
        from: SubscriptionPlace,
        max: u32,
        wanted: &WantedSubscriptions,
    ) -> Page<OwnedSubscription, SubscriptionPlace> {
        let (mut rows, mut looks_left, mut place) = (Vec::new(), PAGE_LOOKS, from);
        while place.slot < self.sessions.slots_end() {
            let slot = place.slot;
            looks_left = looks_left.saturating_sub(1);
            let client = self.sessions.get(slot).filter(|client| wanted.admits(client));
            let skipped = place.count as usize;
            for listed in client.iter().flat_map(|it| it.subscriptions.iter()).skip(skipped) {
                if looks_left == 0 || rows.len() >= max as usize {
                    return Page::of(rows, Some(place));
                }
                (looks_left, place.count) = (looks_left - 1, place.count + 1);
                if let Some(client) = client
                    && wanted.admits_filter(self.sessions.router.text(listed.filter), &listed)
                {
                    let subscription = self.subscription_view(slot, listed);
                    let (scope, client_id) = (client.scope, client.id.clone());
                    rows.push(OwnedSubscription { scope, client_id, subscription });
                }
            }
            place = SubscriptionPlace { slot: slot + 1, count: 0 };
            if looks_left == 0 {
                break;
            }
        }
        Page::of(rows, (place.slot < self.sessions.slots_end()).then_some(place))
    }

    pub(crate) fn look_at_groups(
        &self,
        within: Option<Scope>,
        from: u32,
        max: u32,
    ) -> Page<GroupView> {
        let end = self.groups.numbers_end();
        let mut rows = Vec::new();
        let mut number = from;
        let looks_end = from.saturating_add(PAGE_LOOKS).min(end);
        while number < looks_end && rows.len() < max as usize {
            let group = self.groups.get(number);
            let own = group.filter(|group| {
                within.is_none_or(|scope| group.name.scope == scope)
                    && self.cx.shared.place_of_group(group.name.key) == self.cx.id
            });
            rows.extend(own.map(group_view));
            number += 1;
        }
        Page::of(rows, (number < end).then_some(number))
    }

    /// Of groups only those are listed that have their home here, though all shards know all.
    pub(crate) fn look_at_receivers(
        &mut self,
        topic: Name<'_>,
        from: u32,
        max: u32,
    ) -> Page<ReceiverView> {
        let mut rows = Vec::new();
        let mut place = 0;
        let (index, filters) = self.sessions.router.filters_of(topic.as_bytes());
        let last = from.saturating_add(max);
        for filter in filters {
            let text = Name::of_key(index.text(*filter)).text();
            let subscriptions = index.subscriptions(*filter);
            let begin = (from.max(place) - place).min(subscriptions.len() as u32);
            let end = (last.max(place) - place).min(subscriptions.len() as u32);
            for subscription in &subscriptions[begin as usize..end as usize] {
                let qos = options::qos(subscription.options) as u8;
                let row = ReceiverView { filter: text.into(), qos, ..ReceiverView::default() };
                rows.push((Some(subscription.subscriber), row));
            }
            place += subscriptions.len() as u32;
            for number in index.groups(*filter) {
                if (from..last).contains(&place)
                    && let Some(group) = self.groups.get(*number)
                    && self.cx.shared.place_of_group(group.name.key) == self.cx.id
                {
                    rows.push((None, receiving(group)));
                }
                place += 1;
            }
        }
        let rows = rows.into_iter().filter_map(|(slot, mut row)| {
            let Some(slot) = slot else { return Some(row) };
            let client = self.sessions.get(slot)?;
            row.client_id = client.id.clone();
            row.connected = client.is_connected();
            row.allowed = client.grants.allows(client.identity(), Action::Receive, topic.text());
            Some(row)
        });
        Page::of(rows.collect(), (place > last).then_some(last))
    }

    pub(crate) fn look_at_subscriptions(
        &self,
        client: Name<'_>,
        from: u32,
        max: u32,
    ) -> Option<Page<SubscriptionView>> {
        let slot = self.sessions.find(client)?;
        let client = self.sessions.get(slot)?;
        let count = client.subscriptions.len();
        let listed = client.subscriptions.iter().skip(from as usize).take(max as usize);
        let rows: Vec<_> = listed.map(|listed| self.subscription_view(slot, listed)).collect();
        let next = from as usize + rows.len();
        Some(Page::of(rows, (next < count).then_some(next as u32)))
    }

    fn subscription_view(&self, slot: u32, listed: Listed) -> SubscriptionView {
        let group = listed.group.checked_sub(1).and_then(|number| self.groups.get(number));
        let (bits, identifier) = match group {
            Some(_) => self
                .groups
                .member_bits(listed.group - 1, self.sessions.key(slot))
                .unwrap_or_default(),
            None => {
                let subscription = self.sessions.router.subscription(listed.filter, slot);
                subscription.map_or((0, 0), |it| (it.options, it.identifier))
            }
        };
        SubscriptionView {
            filter: self.sessions.router.text(listed.filter).into(),
            share: group.map(|group| group.name.share.clone()),
            qos: options::qos(bits) as u8,
            no_local: bits & options::NO_LOCAL != 0,
            retain_as_published: bits & options::RETAIN_AS_PUBLISHED != 0,
            identifier,
        }
    }

    pub(crate) fn look_at_sessions(
        &self,
        from: u32,
        max: u32,
        wanted: &Wanted,
    ) -> Page<SessionView> {
        let end = self.sessions.slots_end();
        let mut rows = Vec::new();
        let mut slot = from;
        let looks_end = from.saturating_add(PAGE_LOOKS).min(end);
        while slot < looks_end && rows.len() < max as usize {
            let client =
                self.sessions.get(slot).map(|client| (client, client.queued(self.log.as_deref())));
            let client = client.filter(|(client, queued)| wanted.admits(client, *queued));
            rows.extend(client.map(|(client, queued)| view_of(client, queued)));
            slot += 1;
        }
        Page::of(rows, (slot < end).then_some(slot))
    }

    pub(crate) fn look_at_session(&self, client: Name<'_>) -> Option<Box<SessionView>> {
        let client = self.sessions.get(self.sessions.find(client)?)?;
        let view = view_of(client, client.queued(self.log.as_deref()));
        Some(Box::new(SessionView { details: Some(details_of(client)), ..view }))
    }
}

impl Groups {
    pub(crate) fn look_at_members(
        &self,
        group: GroupText<'_>,
        from: u32,
        max: u32,
    ) -> Option<Page<MemberView>> {
        let group = self.get(self.find(group)?)?;
        let rows: Vec<_> =
            group.members.iter().skip(from as usize).take(max as usize).map(member_view).collect();
        let next = from as usize + rows.len();
        Some(Page::of(rows, (next < group.members.len()).then_some(next as u32)))
    }
}

impl Sessions {
    /// Who asks for more names than a page has rows gets those of the first.
    pub(crate) fn look_at_names(&self, scope: Scope, keys: &[SessionKey]) -> Answer {
        let name = |key: &SessionKey| {
            let client = self.get(self.slot_of(*key)?)?;
            (client.scope == scope).then(|| client.id.clone())
        };
        Answer::Names(keys.iter().take(PAGE_ROWS as usize).map(name).collect())
    }

    pub(crate) fn look_at_homes(&self, client_id: &str, scopes: &[Scope]) -> Vec<(Scope, bool)> {
        let home = |scope: &Scope| {
            let client = self.get(self.find(Name::new(*scope, client_id))?)?;
            Some((*scope, client.is_connected()))
        };
        scopes.iter().take(PAGE_LOOKS as usize).filter_map(home).collect()
    }

    /// Asked of what the broker asks for each message.
    pub(crate) fn explain(&self, scope: Scope, question: &Question) -> Option<Box<Explained>> {
        let Question { who, action, topic, manner } = question;
        let explained = |grants: &Grants, identity: Identity<'_>, is_connected| {
            let attributes = identity.principal.map(|own| own.attributes.clone());
            Box::new(Explained {
                explanation: grants.explain(identity, *action, topic, *manner),
                username: identity.username.map(Into::into),
                attributes: attributes.unwrap_or_default(),
                is_connected,
            })
        };
        match who {
            Asker::Session(client_id) => {
                let client = self.get(self.find(Name::new(scope, client_id))?)?;
                Some(explained(&client.grants, client.identity(), client.is_connected()))
            }
            Asker::Described { client_id, username, principal, address, listener } => {
                let identity = Identity::new(client_id, username.as_deref());
                let identity = identity.with(principal.as_deref());
                let location = ClientLocation { address: *address, listener };
                let grants = self.rules().of(scope).grants_of(identity, location);
                Some(explained(&grants, identity, false))
            }
        }
    }
}

impl WantedSubscriptions {
    fn admits(&self, client: &Client) -> bool {
        self.scope.is_none_or(|scope| scope == client.scope)
            && self.id_part.as_deref().is_none_or(|part| client.id.contains(part))
    }

    fn admits_filter(&self, filter: &str, listed: &Listed) -> bool {
        self.is_shared.is_none_or(|wanted| wanted == listed.is_shared())
            && self.filter.as_deref().is_none_or(|wanted| wanted == filter)
            && self.topic.as_deref().is_none_or(|topic| topic::matches(filter, topic))
    }
}

impl Wanted {
    /// `queued`: so many deliveries wait for it.
    pub(crate) fn admits(&self, client: &Client, queued: u64) -> bool {
        let Identity { client_id, username, .. } = client.identity();
        let address = || client.session.link().map_or("", |link| &link.peer);
        self.scope.is_none_or(|scope| scope == client.scope)
            && self.id_part.as_deref().is_none_or(|part| client_id.contains(part))
            && self.username.as_deref().is_none_or(|name| username.unwrap_or_default() == name)
            && self.connected.is_none_or(|wanted| wanted == client.is_connected())
            && queued >= self.queued_min
            && self.address.as_deref().is_none_or(|begin| address().starts_with(begin))
    }
}

fn view_of(client: &Client, queued: u64) -> SessionView {
    let outgoing = &client.session.outgoing;
    let connection = client.session.link().map(|link| ConnectionView {
        connection: client.connection,
        connected_ms: link.sequence / SEQUENCES_PER_MS,
        listener: client.limits.listener.clone(),
        tally: link.tally(),
        tls: None,
        address: link.peer.clone(),
        version: link.version(),
        keep_alive_secs: link.settings().keep_alive_secs,
        last_packet_ms: link.last_packet_ms,
        send_max: link.settings().send_max,
        unsent_bytes: link.outbox.len() as u64,
    });
    SessionView {
        scope: client.scope,
        client_id: client.id.clone(),
        username: client.username.clone(),
        connection,
        expiry_secs: client.session_expiry_secs,
        expires_at_ms: client.expires_at_ms,
        is_durable: client.is_kept,
        has_will: client.will.is_some(),
        subscriptions: client.subscriptions.len() as u64,
        shared_subscriptions: client.subscriptions.shared_len() as u64,
        queued,
        queued_bytes: outgoing.queued_bytes(),
        in_flight: outgoing.in_flight().into(),
        incoming: client.session.incoming.len() as u64,
        details: None,
    }
}

fn details_of(client: &Client) -> Box<SessionDetails> {
    let will = client.will.as_deref().map(|will| WillView {
        topic: will.topic.clone(),
        payload_bytes: will.payload.len() as u64,
        qos: will.qos as u8,
        retain: will.retain,
        delay_secs: will.delay_secs,
    });
    Box::new(SessionDetails { principal: client.principal.clone(), will, dropped: Vec::new() })
}

fn receiving(group: &Group) -> ReceiverView {
    let qos = group.members.iter().map(|member| options::qos(member.options) as u8).max();
    ReceiverView {
        client_id: Box::default(),
        share: Some(group.name.share.clone()),
        filter: group.name.filter.clone(),
        qos: qos.unwrap_or_default(),
        connected: group.members.online().any(|member| member.load.is_online()),
        allowed: true,
    }
}

fn group_view(group: &Group) -> GroupView {
    GroupView {
        scope: group.name.scope,
        share: group.name.share.clone(),
        filter: group.name.filter.clone(),
        members: group.members.len() as u64,
        online: group.members.online().filter(|member| member.load.is_online()).count() as u64,
        waiting: group.queue.amount().messages.into(),
    }
}

fn member_view(member: &Member) -> MemberView {
    MemberView {
        key: member.key,
        qos: options::qos(member.options) as u8,
        connected: member.load.is_online(),
        in_flight: member.load.in_flight().into(),
    }
}
