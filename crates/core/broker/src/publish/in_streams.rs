//! A message's way into streams: written before anybody else gets it.

use codec::Reason;
use session::{Message, Respondent};

use crate::Name;
use crate::Shard;
use crate::deliver::copies::Keeping;
use crate::log::streams::ForStreams;
use crate::log::waiting::Step;
use crate::parts::client::Client;
use crate::parts::sessions::Sessions;
use crate::parts::stream_index::{Asking, Places};
use crate::words::asked::Asked;
use crate::words::reasons::reason_of;

/// What became of a message on its way into streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InStreams {
    /// A stream has it.
    pub(crate) has_any: bool,
    /// Some: durable sessions here share its record.
    pub(crate) serial: Option<u64>,
}

impl InStreams {
    /// How the message comes into the log for the sessions here.
    pub(super) fn keeping(&self, asked: Option<&Asked>) -> Keeping {
        self.serial.map_or_else(|| Keeping::of_published(asked), Keeping::Kept)
    }
}

impl Shard {
    /// Writes the message for the streams that want it; its acknowledgement waits for that. Nothing
    /// else writes to streams: not mail from other shards, not what waits in a line, not what was
    /// taken on and is passed on.
    ///
    /// Err: its publisher can be notified, and nothing was done.
    #[inline]
    pub(crate) fn store_in_streams(
        &mut self,
        message: &Message,
        asked: Option<&mut Asked>,
    ) -> Result<InStreams, Reason> {
        let mut places = self.sessions.streams_for(message);
        if places.is_empty() {
            return Ok(InStreams::default());
        }
        match asked {
            Some(asked) => match self.sessions.reason_of_full(&places) {
                Some(reason) => Err(reason),
                None => self.write_for_streams(message, &places, Some(asked)),
            },
            None => {
                let all = places.len();
                // Nobody can be refused: what there is no space for is lost, and counted.
                let is_over_limit = self.sessions.is_over_log_limit(message);
                places.retain(|place| !is_over_limit && !self.sessions.is_full(*place));
                self.cx.metrics.stream_messages_unstored.add((all - places.len()) as u64);
                if places.is_empty() {
                    return Ok(InStreams::default());
                }
                self.write_for_streams(message, &places, None)
            }
        }
    }

    #[inline(never)]
    fn write_for_streams(
        &mut self,
        message: &Message,
        places: &[u32],
        asked: Option<&mut Asked>,
    ) -> Result<InStreams, Reason> {
        let mut audience =
            self.sessions.router.audience(Name::topic_of(message), &mut self.cx.flow.work);
        let found = audience.subscriptions();
        let is_refused = asked.is_some()
            && self.cx.shared.settings.rejects
            && self.anybody_refuses(message, found);
        let written = match is_refused {
            true => Err(Reason::QUOTA_EXCEEDED),
            false => {
                let kept = self.keep_for_streams(message, found, places);
                kept.map_err(|error| reason_of(&error))
            }
        };
        self.sessions.router.keep(audience);
        match (written, asked) {
            (Ok((serial, position, level)), asked) => {
                if let (Some(asked), Some(log)) = (asked, &mut self.log) {
                    let confirm = asked.ask(Respondent::OWN_JOURNAL);
                    log.wait(position, level, Step::Answer(confirm));
                }
                Ok(InStreams { has_any: true, serial })
            }
            (Err(reason), Some(_)) => Err(reason),
            (Err(_), None) => {
                self.cx.metrics.stream_messages_unstored.add(places.len() as u64);
                Ok(InStreams::default())
            }
        }
    }

    /// Planted: what a stream has got already is stored again.
    pub(super) fn store_again(&mut self, slot: Option<u32>, message: &Message) {
        let places = self.sessions.streams_for(message);
        let Self { cx, sessions, log: Some(log), .. } = self else { return };
        let publisher = slot.and_then(|slot| sessions.get(slot)).map(Client::as_publisher);
        let (owner, author) = (None, message.author());
        let own = ForStreams { message, publisher, owner, author, places: &places };
        if !places.is_empty() {
            let set = sessions.router.streams().set();
            let _ = log.store_for_streams(set, &own, false, cx.now_ms);
        }
    }
}

impl Sessions {
    /// The streams that want the message, by their places in the set.
    #[inline]
    pub(crate) fn streams_for(&mut self, message: &Message) -> Places {
        self.router.streams_for(Name::topic_of(message), Asking::of(message))
    }

    /// Why a stream that is full refuses a message.
    pub(crate) fn reason_of_full(&self, places: &[u32]) -> Option<Reason> {
        let is_full = places.iter().any(|place| self.is_full(*place));
        is_full.then_some(Reason::QUOTA_EXCEEDED)
    }

    fn is_full(&self, place: u32) -> bool {
        let stream = self.router.streams().set().streams.get(place as usize);
        stream.is_some_and(|stream| stream.is_full.is_raised())
    }
}
