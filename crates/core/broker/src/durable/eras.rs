//! What the subscriptions of a session were before, as long as a message is due by that.
//!
//! A message is delivered by the subscription of the time when it came (MQTT 5, section 3.8.4). The
//! journal keeps it once for all sessions and without their terms, so a session remembers up to
//! which serial a filter of it had other options, or was not subscribed.

use storage::AppendError;
use topic::{FilterId, Subscription};

use crate::durable::Durable;
use crate::durable::kept_sessions::KeptSession;
use crate::durable::store::{Class, Store};
use crate::journal::{Fact, Subscribed};
use crate::parts::client::Client;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Listed;
use crate::words::options;
use crate::words::record_location::RecordLocation;

/// Changes of one filter that are remembered at the same time. Policy: a SUBSCRIBE that would be
/// one more is refused until the client has acknowledged what is due by the oldest.
const CHANGES_PER_FILTER_MAX: usize = 8;

/// What a filter of a session was up to a serial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Era {
    filter: FilterId,
    through: u64,
    /// Option bits of the index and identifier. None: it was not subscribed.
    subscribed: Option<(u8, u32)>,
    place: RecordLocation,
}

/// By filter and serial.
#[derive(Debug, Default)]
pub(super) struct Eras(Vec<Era>);

impl Eras {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn of(&self, filter: FilterId) -> &[Era] {
        let begin = self.0.partition_point(|era| era.filter < filter);
        let count = self.0[begin..].partition_point(|era| era.filter == filter);
        &self.0[begin..begin + count]
    }

    /// The filter was not subscribed up to this serial.
    pub(super) fn not_before(&self, filter: FilterId) -> u64 {
        let first = self.of(filter).first().filter(|era| era.subscribed.is_none());
        first.map_or(0, |era| era.through)
    }

    pub(crate) fn begin(&mut self, filter: FilterId, through: u64) {
        self.insert(Era { filter, through, subscribed: None, place: RecordLocation::NOWHERE });
    }

    pub(super) fn restore(
        &mut self,
        filter: FilterId,
        through: u64,
        subscribed: (u8, u32),
        place: RecordLocation,
    ) {
        self.insert(Era { filter, through, subscribed: Some(subscribed), place });
    }

    fn insert(&mut self, era: Era) {
        let key = (era.filter, era.through);
        let index = self.0.partition_point(|known| (known.filter, known.through) < key);
        self.0.insert(index, era);
    }

    pub(super) fn place_mut(
        &mut self,
        filter: FilterId,
        through: u64,
    ) -> Option<&mut RecordLocation> {
        let mut all = self.0.iter_mut();
        let found = all.find(|era| era.filter == filter && era.through == through)?;
        Some(&mut found.place)
    }

    /// Takes out what nothing is due by any more; their facts are released.
    fn take(&mut self, is_over: impl Fn(&Era) -> bool) -> Vec<RecordLocation> {
        let mut places = Vec::new();
        self.0.retain(|era| {
            if is_over(era) {
                places.push(era.place);
            }
            !is_over(era)
        });
        self.0.shrink_to_fit();
        places
    }

    pub(super) fn into_places(self) -> impl Iterator<Item = RecordLocation> {
        self.0.into_iter().map(|era| era.place)
    }
}

/// The subscription by which a message with this serial is due. `eras`: of its filter.
pub(super) fn at(eras: &[Era], serial: u64, now: Option<Subscription>) -> Option<Subscription> {
    let now = now?;
    let Some(era) = eras.iter().find(|era| serial <= era.through) else { return Some(now) };
    let (bits, identifier) = era.subscribed?;
    // Rights are those of now.
    let check = now.options & options::CHECK_RECEIVE;
    Some(Subscription { options: bits | check, identifier, ..now })
}

/// Is such a message in the journal assigned to the session?
pub(super) fn is_assigned(eras: &[Era], serial: u64, is_durable_now: bool) -> bool {
    match eras.iter().find(|era| serial <= era.through) {
        Some(era) => era.subscribed.is_some_and(|(bits, _)| bits & options::DURABLE != 0),
        None => is_durable_now,
    }
}

/// What became of a change of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Remembered,
    /// [`CHANGES_PER_FILTER_MAX`] are remembered, and something is due by each.
    TooMany,
}

impl Client {
    pub(super) fn eras_of(&self, filter: FilterId) -> &[Era] {
        self.durable.as_ref().map_or(&[], |durable| durable.eras_of(filter))
    }
}

impl Durable {
    /// A filter is the session's from now on: what came before is none of its business.
    pub(super) fn begin_filter(&mut self, sessions: &mut Sessions, slot: u32, filter: FilterId) {
        let (Some(durable), Some(store)) = (sessions.kept_mut(slot), &mut self.store) else {
            return;
        };
        durable.forget_upcoming();
        if let Some(through) = store.assigned_through(durable) {
            store.forget_old_eras(durable);
            durable.rare().eras.begin(filter, through);
        }
    }

    /// A subscription gets other options from now on: what came before is due by the `old` ones.
    pub(super) fn change_filter(
        &mut self,
        sessions: &mut Sessions,
        slot: u32,
        listed: Listed,
        text: &str,
        (bits, identifier): (u8, u32),
    ) -> Result<Change, AppendError> {
        // A group keeps no terms: what it dispatches goes by the options of now.
        if listed.is_shared() {
            return Ok(Change::Remembered);
        }
        let (Some(durable), Some(store)) = (sessions.kept_mut(slot), &mut self.store) else {
            return Ok(Change::Remembered);
        };
        durable.forget_upcoming();
        let Some(through) = store.assigned_through(durable) else { return Ok(Change::Remembered) };
        store.forget_old_eras(durable);
        let eras = durable.eras_of(listed.filter);
        if eras.last().is_some_and(|era| era.through >= through) {
            // Nothing has come by it.
            return Ok(Change::Remembered);
        }
        if eras.len() >= CHANGES_PER_FILTER_MAX {
            return Ok(Change::TooMany);
        }
        let fact = Fact::Formerly(Subscribed {
            session: durable.queue,
            options: super::kept_sessions::subscribe_options(bits).to_byte(),
            identifier,
            serial: through,
            filter: text,
        });
        let place = store.append(Class::Normal, &fact, durable.journal_level())?;
        durable.rare().eras.restore(listed.filter, through, (bits, identifier), place);
        Ok(Change::Remembered)
    }

    /// The session has given the filter up.
    pub(crate) fn forget_eras_of(&mut self, sessions: &mut Sessions, slot: u32, filter: FilterId) {
        if let (Some(durable), Some(store)) = (sessions.kept_mut(slot), &mut self.store) {
            store.forget_eras(durable, |era| era.filter == filter);
        }
    }
}

impl KeptSession {
    pub(super) fn eras_of(&self, filter: FilterId) -> &[Era] {
        self.rare.as_ref().map_or(&[], |rare| rare.eras.of(filter))
    }
}

impl Store {
    /// The newest serial, if any up to that is assigned to the session.
    fn assigned_through(&self, durable: &mut KeptSession) -> Option<u64> {
        let last_serial = self.last_serial();
        if !durable.is_behind {
            durable.track.advance(last_serial);
        }
        (durable.track.floor() < last_serial).then_some(last_serial)
    }

    /// Nothing is due any more by what was replaced so long ago.
    pub(super) fn forget_old_eras(&mut self, durable: &mut KeptSession) {
        let floor = durable.track.floor();
        self.forget_eras(durable, |era| era.through <= floor);
    }

    fn forget_eras(&mut self, durable: &mut KeptSession, is_over: impl Fn(&Era) -> bool) {
        let Some(rare) = durable.rare.as_mut().filter(|rare| !rare.eras.is_empty()) else { return };
        rare.eras.take(is_over).into_iter().for_each(|place| self.release(place));
    }
}
