//! The links of this node: mail of its cells, and clients that are relayed.

use std::sync::Arc;

use broker::{Mail, Place, ShardId};

use super::table::Table;
use crate::cluster::{Acting, Owner, Plan};
use crate::run::acceptor::Entered;
use crate::run::limiter::Listener;
use crate::run::mailbox::Mailbox;
use crate::run::parts::Parts;
use config::ClusterConfig;

pub(in crate::run) struct NodeLinks;

/// The way of mail from the shards of a cell to other cells.
#[derive(Clone)]
pub(in crate::run) struct Post {
    links: Arc<NodeLinks>,
    cell: u16,
    epoch: u64,
}

impl Post {
    pub(super) fn new(links: &Arc<NodeLinks>, cell: u16, epoch: u64) -> Self {
        Self { links: links.clone(), cell, epoch }
    }

    pub(in crate::run) fn put(&self, from: ShardId, to: Place, mails: Vec<Mail>) {
        let _ = (&self.links, self.cell, self.epoch, from, to, mails);
    }
}

impl NodeLinks {
    pub(super) fn start(
        _cluster: &ClusterConfig,
        _plan: &Plan,
        _table: &Arc<Table>,
        _listeners: Vec<Arc<Listener>>,
    ) -> anyhow::Result<Self> {
        Ok(Self)
    }

    pub(super) fn relay(
        &self,
        (_cell, _node, _epoch): (u16, &str, u64),
        entered: Entered,
    ) -> Result<(), Entered> {
        Err(entered)
    }

    pub(super) fn owner_changed(&self, _cell: u16, _owner: Option<Owner>) {}

    pub(super) fn open_cell(
        &self,
        (_cell, _epoch): (u16, u64),
        _parts: &Parts,
        _mailboxes: Arc<[Arc<Mailbox>]>,
        _acting: Acting,
    ) {
    }

    pub(super) fn close_cell(&self, _cell: u16, _epoch: u64) {}
}
