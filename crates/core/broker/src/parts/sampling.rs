//! Which messages get a span.

use std::collections::{BTreeMap, VecDeque};

use crate::parts::tracing::Partial;
use crate::words::settings::SpanSettings;
use crate::words::span::{SAMPLED, TraceContext};

/// What a shard keeps for its spans.
#[derive(Debug)]
pub(crate) struct Spans {
    settings: SpanSettings,
    random: u64,
    /// Packets to clients that are not written whole yet.
    pub(crate) partial: BTreeMap<u64, Partial>,
    recent: VecDeque<Recent>,
    pub(crate) second: Second,
}

/// What got a span in the present second.
#[derive(Debug, Default)]
pub(crate) struct Second {
    /// In seconds of broker time.
    number: u64,
    received: u32,
    /// By the client: no more than all together.
    received_of: BTreeMap<u64, u32>,
    sent: u32,
}

/// A message that was written to clients lately.
#[derive(Debug)]
pub(crate) struct Recent {
    parent: [u8; 8],
    spans: u32,
    /// Of its last span: the round of [`crate::Effects::take_spans`], and the place.
    last: (u64, usize),
}

impl Spans {
    pub(crate) fn new(settings: SpanSettings, seed: u64) -> Self {
        let recent = VecDeque::with_capacity(RECENT_MAX);
        let (partial, second) = (BTreeMap::new(), Second::default());
        Self { settings, random: seed, partial, recent, second }
    }

    pub(crate) fn forget(&mut self, connection: u64) {
        self.partial.remove(&connection);
    }

    /// SplitMix64: IDs need to differ, not to be secret.
    const fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Never 0, which is invalid.
    pub(crate) fn next_id(&mut self) -> [u8; 8] {
        (self.next_random() | 1).to_be_bytes()
    }

    fn samples(&mut self) -> bool {
        self.settings.sampled_per_million > 0
            && self.next_random() % 1_000_000 < self.settings.sampled_per_million.into()
    }

    /// The context of a new span. None: what follows is not traced.
    pub(crate) fn begin(&mut self, parent: Option<TraceContext>) -> Option<TraceContext> {
        match parent {
            Some(parent) => {
                parent.is_sampled().then(|| TraceContext { span_id: self.next_id(), ..parent })
            }
            None => self.samples().then(|| {
                let (high, low) = (self.next_random().to_be_bytes(), self.next_id());
                let mut trace_id = [0; 16];
                trace_id[..8].copy_from_slice(&high);
                trace_id[8..].copy_from_slice(&low);
                TraceContext { trace_id, span_id: self.next_id(), flags: SAMPLED }
            }),
        }
    }

    /// A message was written to a client. `next`: the round and the place of the next span.
    /// Some: it is counted at the span there.
    pub(crate) fn is_left_out(&mut self, parent: [u8; 8], next: (u64, usize)) -> Option<usize> {
        let known = self.recent.iter_mut().rev().find(|recent| recent.parent == parent);
        let Some(recent) = known else {
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(Recent { parent, spans: 1, last: next });
            return None;
        };
        if recent.spans >= SPANS_PER_MESSAGE_MAX && recent.last.0 == next.0 {
            return Some(recent.last.1);
        }
        recent.spans += 1;
        recent.last = next;
        None
    }
}

impl Second {
    pub(crate) fn begin(&mut self, now_ms: u64) {
        let number = now_ms / 1000;
        if self.number != number {
            *self = Self { number, ..Self::default() };
        }
    }

    pub(crate) fn takes_received(&mut self, client: u64, now_ms: u64) -> bool {
        self.begin(now_ms);
        if self.received >= RECEIVED_PER_SECOND_MAX {
            return false;
        }
        let own = self.received_of.entry(client).or_default();
        let is_taken = *own < RECEIVED_PER_CLIENT_MAX;
        *own += u32::from(is_taken);
        self.received += u32::from(is_taken);
        is_taken
    }

    pub(crate) fn takes_sent(&mut self, now_ms: u64) -> bool {
        self.begin(now_ms);
        let is_taken = self.sent < SENT_PER_SECOND_MAX;
        self.sent += u32::from(is_taken);
        is_taken
    }
}

/// Messages whose spans are counted, the latest ones. One that is older counts as new.
pub(crate) const RECENT_MAX: usize = 64;

pub const RECEIVED_PER_CLIENT_MAX: u32 = 250;

/// Messages of a shard that get a span in a second, and how many of them are of one client. Further
/// ones are passed on unchanged, and counted as lost: a publisher sets the flag as it likes.
pub const RECEIVED_PER_SECOND_MAX: u32 = 1_000;

/// Packets of a shard to clients that get a span in a second; more are counted as lost.
pub const SENT_PER_SECOND_MAX: u32 = 4_000;

/// Packets to clients that get a span, for each message and shard. Of those beyond it one in a turn
/// gets a span, and the others are counted there ([`crate::Span::left_out`]).
pub const SPANS_PER_MESSAGE_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn spans(sampled_per_million: u32) -> Spans {
        Spans::new(SpanSettings { sampled_per_million }, 7)
    }

    #[test]
    fn a_span_keeps_the_trace_of_its_parent() {
        let mut spans = spans(1_000_000);
        let parent = TraceContext::parse(GIVEN).unwrap();
        let own = spans.begin(Some(parent)).unwrap();
        assert_eq!(own.trace_id, parent.trace_id);
        assert_ne!(own.span_id, parent.span_id);
        assert_eq!(spans.begin(Some(TraceContext { flags: 0, ..parent })), None);
        let (one, two) = (spans.begin(None).unwrap(), spans.begin(None).unwrap());
        assert_ne!(one.trace_id, two.trace_id);
        assert!(one.is_sampled());
    }

    #[test]
    fn as_many_messages_are_sampled_as_the_ratio_says() {
        let mut some = spans(10_000);
        let begun = (0..100_000).filter(|_| some.begin(None).is_some()).count();
        assert!((800..1_200).contains(&begun), "{begun}");
        let mut none = spans(0);
        assert!((0..1_000).all(|_| none.begin(None).is_none()));
    }

    #[test]
    fn packets_beyond_the_limit_of_a_message_are_counted_at_its_last_span_of_the_turn() {
        let mut spans = spans(0);
        let one = [1; 8];
        for number in 0..SPANS_PER_MESSAGE_MAX as usize {
            assert_eq!(spans.is_left_out(one, (0, number)), None);
        }
        assert_eq!(spans.is_left_out(one, (0, 16)), Some(15));
        assert_eq!(spans.is_left_out([2; 8], (0, 16)), None);
        // The spans were taken: another one is to count at.
        assert_eq!(spans.is_left_out(one, (1, 0)), None);
        assert_eq!(spans.is_left_out(one, (1, 1)), Some(0));
        for other in 0..RECENT_MAX as u64 {
            spans.is_left_out((other + 100).to_be_bytes(), (1, 1));
        }
        assert!(spans.recent.len() <= RECENT_MAX);
    }

    #[test]
    fn a_client_leaves_spans_to_others_and_a_second_ends() {
        let mut second = Second::default();
        let mut taken = |client, now_ms| {
            (0..2_000).filter(|_| second.takes_received(client, now_ms)).count() as u32
        };
        assert_eq!(taken(1, 5_000), RECEIVED_PER_CLIENT_MAX);
        let others: u32 = (2..10).map(|client| taken(client, 5_999)).sum();
        assert_eq!(others, RECEIVED_PER_SECOND_MAX - RECEIVED_PER_CLIENT_MAX);
        assert_eq!(taken(1, 6_000), RECEIVED_PER_CLIENT_MAX);
        let sent = (0..9_000).filter(|_| second.takes_sent(6_000)).count() as u32;
        assert_eq!(sent, SENT_PER_SECOND_MAX);
        assert!(second.takes_sent(7_000));
    }
}
