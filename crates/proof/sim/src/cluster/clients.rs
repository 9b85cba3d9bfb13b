//! Clients and the nodes that they are connected to.

use crate::world::World;

impl World {
    /// The world goes on with the broker that the client is connected to.
    pub(crate) fn switch_to_client(&mut self, who: usize) {
        self.switch_to_cell(self.cell_of(who));
        if let Some(member) = self.clients[who].wire.as_ref().map(|wire| wire.member) {
            self.switch_to(member);
        }
    }

    /// A client that connects finds the node that serves, or any.
    pub(crate) fn choose_node_of(&mut self, who: usize) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        let count = cluster.members.len();
        let open = cluster.open(now_ms).filter(|_| cluster.is_calm() || cluster.random.chance(70));
        let any = cluster.random.below(count);
        let stale = cluster.stale().filter(|_| !cluster.is_calm() && cluster.random.chance(50));
        cluster.toll.connects_to_stale += u64::from(stale.is_some());
        let member = stale.or(open).unwrap_or(any);
        let is_up = cluster.members[member].agent.is_some();
        if let Some(wire) = &mut self.clients[who].wire {
            wire.member = member;
        }
        if !is_up {
            self.lose(who);
        }
    }

    /// Clients go back and forth between a node that serves and one that does no more.
    pub(crate) fn roam(&mut self) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        if cluster.stale().is_none() || cluster.is_calm() || !cluster.random.chance(10) {
            return Ok(());
        }
        let who = cluster.random.below(self.clients.len());
        self.come_back(who)
    }

    /// Can bytes go between a client and its node now?
    pub(crate) fn may_reach_node_of(&self, who: usize) -> bool {
        let Some(cluster) = &self.cluster else {
            return self.cells.as_ref().is_none_or(|cells| cells.is_up(self.cell_of(who)));
        };
        let Some(wire) = &self.clients[who].wire else { return false };
        let is_leaving = cluster.members[wire.member].has_shut_down;
        !is_leaving && cluster.is_open(wire.member, self.now_ms)
    }

    /// The same, and the world goes on with its broker. A standby closes the connection.
    pub(crate) fn reach_node_of(&mut self, who: usize) -> bool {
        if self.may_reach_node_of(who) {
            self.switch_to_client(who);
            return true;
        }
        let Some(cluster) = &mut self.cluster else { return false };
        let Some(wire) = &self.clients[who].wire else { return false };
        let node = &cluster.members[wire.member];
        let is_closed = node.is_running() && (!node.is_ready || node.has_shut_down);
        if is_closed && wire.place.is_none() {
            cluster.toll.refused_by_standby += u64::from(!node.has_journals);
            self.note(|| format!("client {who} is refused by a node that does not serve"));
            self.lose(who);
        }
        false
    }

    /// Does the process of the current broker run?
    pub(crate) fn is_current_running(&self) -> bool {
        self.cluster.as_ref().is_none_or(|it| it.members[it.current].is_running())
    }
}
