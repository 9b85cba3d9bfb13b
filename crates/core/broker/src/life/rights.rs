//! New rules for sessions that are open.

use crate::Name;
use crate::parts::groups::Groups;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Listed;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::options;
use crate::words::rules::Rules;

impl Sessions {
    /// From now on these rules hold.
    pub(crate) fn set_rules(&mut self, cx: &mut Context, groups: &mut Groups, rules: Rules) {
        self.rules = rules;
        for slot in self.slots() {
            self.renew_grants(cx, groups, slot);
        }
    }

    /// A client may do what the rules say of it now.
    pub(crate) fn renew_grants(&mut self, cx: &mut Context, groups: &mut Groups, slot: u32) {
        let Some(Some(client)) = self.clients.get_mut(slot as usize) else { return };
        client.grants = client.grants_by(&self.rules);
        client.rechecks = !client.grants.is_open();
        client.forget_verdicts();
        client.recharge();
        self.recheck_receiving(cx, groups, slot);
    }
}

impl Sessions {
    /// After new access rules: which subscriptions need a check for each message?
    pub(crate) fn recheck_receiving(&mut self, cx: &mut Context, groups: &mut Groups, slot: u32) {
        let Some(client) = self.get(slot).expected() else { return };
        let listed: Vec<Listed> = client.subscriptions.iter().collect();
        let member = self.key(slot);
        let (units, mut left) = (client.grants.filter_units(), cx.flow.work.units_max());
        for Listed { filter, group, .. } in listed {
            let key = self.router.key(filter).to_owned();
            let name = Name::of_key(&key);
            let Some(client) = self.get(slot).expected() else { return };
            // Beyond what a turn has for it, each message is checked instead.
            left = left.saturating_sub(units);
            let is_covered = left > 0 && client.grants.covers(client.identity(), name.text());
            cx.flow.work.charge(units);
            if group != 0 {
                groups.set_check_receive(group - 1, member, !is_covered);
                continue;
            }
            let Some(mut subscription) = self.router.subscription(filter, slot) else { continue };
            let before = subscription.options;
            subscription.options &= !options::CHECK_RECEIVE;
            if !is_covered {
                subscription.options |= options::CHECK_RECEIVE;
            }
            if subscription.options != before {
                self.router.subscribe(name, subscription);
            }
        }
    }
}
