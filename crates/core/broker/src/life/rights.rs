//! New rules for sessions that are open.

use crate::Name;
use crate::Shard;
use crate::parts::subscriptions::Listed;
use crate::words::expected::Expected;
use crate::words::options;
use crate::words::rules::Rules;

impl Shard {
    /// From now on these rules hold.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.sessions.rules = rules;
        for slot in self.sessions.slots() {
            self.renew_grants(slot);
        }
    }

    /// A client may do what the rules say of it now.
    pub(crate) fn renew_grants(&mut self, slot: u32) {
        let Some(Some(client)) = self.sessions.clients.get_mut(slot as usize) else { return };
        client.grants = client.grants_by(&self.sessions.rules);
        client.rechecks = !client.grants.is_open();
        client.forget_verdicts();
        client.recharge();
        self.recheck_receiving(slot);
    }

    /// After new access rules: which subscriptions need a check for each message?
    pub(crate) fn recheck_receiving(&mut self, slot: u32) {
        let Some(client) = self.sessions.get(slot).expected() else { return };
        let listed: Vec<Listed> = client.subscriptions.iter().collect();
        let member = self.sessions.key(slot);
        let (units, mut left) = (client.grants.filter_units(), self.cx.flow.work.units_max());
        for Listed { filter, group, .. } in listed {
            let key = self.sessions.router.key(filter).to_owned();
            let name = Name::of_key(&key);
            let Some(client) = self.sessions.get(slot).expected() else { return };
            // Beyond what a turn has for it, each message is checked instead.
            left = left.saturating_sub(units);
            let is_covered = left > 0 && client.grants.covers(client.identity(), name.text());
            self.cx.flow.work.charge(units);
            if group != 0 {
                self.groups.set_check_receive(group - 1, member, !is_covered);
                continue;
            }
            let Some(mut subscription) = self.sessions.router.subscription(filter, slot) else {
                continue;
            };
            let before = subscription.options;
            subscription.options &= !options::CHECK_RECEIVE;
            if !is_covered {
                subscription.options |= options::CHECK_RECEIVE;
            }
            if subscription.options != before {
                self.sessions.router.subscribe(name, subscription);
            }
        }
    }
}
