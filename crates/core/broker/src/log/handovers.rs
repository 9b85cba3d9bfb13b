//! QoS 2 publishes of durable sessions, and wills: taken on in one record, then passed to the other
//! shards.
//!
//! The record of a publish holds the message and its packet id, so that both survive a crash or
//! neither. Only when it is committed is the message mailed, with its serial: a shard that has had
//! this serial knows it for a repetition. So it enters each journal once, however often it has to
//! be mailed. A will is mailed at once (`will.rs`): if its record is lost, it is published again.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use session::{Awaited, Message};

use crate::Confirm;
use crate::log::track::Track;
use crate::words::queue_number::QueueNumber;
use crate::words::record_location::RecordLocation;

/// A message that is not yet known to be stored by all shards that have to.
#[derive(Debug)]
pub(crate) struct Handover {
    /// The queue number of its session, if the journal has it.
    pub(crate) session: Option<QueueNumber>,
    /// It waits in the line of what is passed on.
    pub(super) is_in_line: bool,
    /// The acknowledgement that waits for it, if its connection still does.
    pub(crate) confirm: Option<Confirm>,
    /// None after a start, until the disk has given it.
    pub(crate) message: Option<Message>,
    /// Who has yet to answer.
    pub(crate) awaited: Awaited,
    pub(crate) is_will: bool,
}

impl Received {
    pub(super) fn may_be_on(&self, topic_mark: Option<u64>) -> bool {
        self.topic_mark.is_none() || topic_mark.is_none() || self.topic_mark == topic_mark
    }
}

/// All of them. Bounded by the receive maxima of the publishers, and for wills by what the journal
/// has room for.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    pub(super) by_serial: HashMap<u64, Handover, FixedState>,
    pub(super) track: Track,
    /// After a start, until all that were under way are passed on again: new ones wait behind them.
    pub(super) is_resuming: bool,
    pub(super) flaw: Option<HandoverFlaw>,
}

/// Faults that tests plant, to see that they are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandoverFlaw {
    /// Mail that comes again is answered at once, though the first is not committed.
    AnswersRepetitions,
    /// A serial is noted only where something was kept.
    NotesKeptOnly,
}

/// A QoS 2 packet id between PUBLISH and PUBREL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) packet_id: u16,
    pub(crate) serial: u64,
    /// Where it stands by itself; else in the record of its message.
    pub(crate) place: RecordLocation,
    /// None: it is of an earlier life.
    pub(super) topic_mark: Option<u64>,
    /// An older retained publish of its client and topic has come again since: should it come
    /// again, too, it is retained anew.
    pub(crate) is_undone: bool,
    /// Its PUBREL is written down: a copy of this fact would outlive that.
    pub(super) is_released: bool,
}

impl Handovers {
    pub(crate) fn get(&self, serial: u64) -> Option<&Handover> {
        self.by_serial.get(&serial)
    }

    pub(crate) fn get_mut(&mut self, serial: u64) -> Option<&mut Handover> {
        self.by_serial.get_mut(&serial)
    }

    /// One that was under way when the broker ended.
    pub(crate) fn restore(&mut self, serial: u64, session: Option<QueueNumber>, is_will: bool) {
        let is_in_line = true;
        let (confirm, message, awaited) = (None, None, Awaited::default());
        let handover = Handover { session, is_in_line, confirm, message, awaited, is_will };
        self.by_serial.insert(serial, handover);
        self.track.assign(serial, 0);
        self.is_resuming = true;
    }

    /// A will has become a message.
    pub(super) fn begin_will(&mut self, serial: u64, session: QueueNumber, message: &Message) {
        let handover = Handover {
            session: Some(session),
            is_in_line: false,
            confirm: None,
            message: Some(message.clone()),
            awaited: Awaited::default(),
            is_will: true,
        };
        self.by_serial.insert(serial, handover);
        self.track.assign(serial, 0);
    }

    /// It is passed on when its turn has come.
    pub(super) fn note_in_line(&mut self, serial: u64) {
        if let Some(handover) = self.by_serial.get_mut(&serial) {
            handover.is_in_line = true;
        }
    }

    /// Those that have yet to reach somebody.
    pub(crate) fn waiting_count(&self) -> usize {
        self.by_serial.len()
    }

    /// Has it yet to reach somebody?
    pub(super) fn is_under_way(&self, serial: u64) -> bool {
        self.by_serial.contains_key(&serial)
    }

    /// A repetition of the publish waits, instead of the connection that is gone.
    pub(super) fn await_again(&mut self, serial: u64, confirm: Confirm) {
        if let Some(handover) = self.by_serial.get_mut(&serial) {
            handover.confirm = Some(confirm);
        }
    }

    pub(crate) fn serials(&self) -> Vec<u64> {
        let mut serials: Vec<u64> = self.by_serial.keys().copied().collect();
        serials.sort_unstable();
        serials
    }
}
