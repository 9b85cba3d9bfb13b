//! Those who read the stream of events: few, each with a queue of its own, and cut when it is full.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use web::Lasting;
use web::axum::body::Bytes;

use super::{Caller, Happened};

/// Readers at a time.
pub(crate) const READERS_MAX: usize = 8;

/// Events that a reader may be behind: with one more it is cut.
const EVENTS_MAX: usize = 1_000;

/// How often those to whom nothing was said hear that they are not forgotten. That somebody has
/// gone shows by the second one.
const BEAT_MS: u64 = 5_000;

#[derive(Debug, Default)]
pub(crate) struct Readers {
    all: Mutex<Vec<Reader>>,
    /// How many there are: asked before anything is made.
    count: AtomicUsize,
    cut: AtomicU64,
    beat_ms: AtomicU64,
}

/// What a reader wants: what meets all that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// How the type begins.
    pub(crate) full_type: Option<String>,
    pub(crate) client_id: Option<String>,
    /// What has happened in it; what concerns all is in none.
    pub(crate) namespace: Option<String>,
}

#[derive(Debug)]
struct Reader {
    caller: Caller,
    wanted: Wanted,
    queue: mpsc::Sender<Bytes>,
    /// Dropped: its connection is to end, also if it takes nothing.
    _is_open: oneshot::Sender<()>,
}

/// The reader's end of it.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) queue: mpsc::Receiver<Bytes>,
    pub(crate) lasting: Lasting,
}

impl Wanted {
    fn admits(&self, happened: &Happened<'_>) -> bool {
        let is_type = |wanted: &str| happened.full_type().starts_with(wanted);
        self.full_type.as_deref().is_none_or(is_type)
            && self.client_id.as_deref().is_none_or(|it| happened.client_id == Some(it))
            && self.namespace.as_deref().is_none_or(|it| happened.namespace.as_deref() == Some(it))
    }
}

impl Readers {
    pub(crate) fn are_none(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// At the limit a stream of the caller with the most of them ends, if it has at least two more
    /// than this caller: no caller can keep the others out. None: nobody has.
    pub(crate) fn add(&self, caller: Caller, wanted: Wanted) -> Option<Reading> {
        let mut all = self.lock();
        all.retain(|reader| !reader.queue.is_closed());
        if all.len() >= READERS_MAX {
            let oldest = oldest_of_greedier(&all, &caller.name)?;
            all.remove(oldest);
            tracing::info!(
                caller = &*base::shown(&caller.name),
                "event stream closed: the limit of streams is reached, and this caller has the \
                most"
            );
        }
        let (sender, queue) = mpsc::channel(EVENTS_MAX);
        let (open, over) = oneshot::channel();
        // The first words: who asks knows that nothing is missed from here on.
        let _ = sender.try_send(Bytes::from_static(b": from here on\n\n"));
        all.push(Reader { caller, wanted, queue: sender, _is_open: open });
        self.count.store(all.len(), Ordering::Relaxed);
        Some(Reading { queue, lasting: Lasting::until(over) })
    }

    pub(crate) fn put(&self, happened: &Happened<'_>, id: &str, text: &str) {
        if self.are_none() {
            return;
        }
        let full_type = happened.full_type();
        let text = base::json_line(text);
        let bytes = Bytes::from(format!("id: {id}\nevent: {full_type}\ndata: {text}\n\n"));
        self.put_to(|reader| reader.wanted.admits(happened), &bytes);
    }

    /// Who has gone is noticed by it, too.
    pub(crate) fn beat(&self, now_ms: u64) {
        if self.are_none() || now_ms < self.beat_ms.load(Ordering::Relaxed) {
            return;
        }
        self.beat_ms.store(now_ms + BEAT_MS, Ordering::Relaxed);
        self.put_to(|_| true, &Bytes::from_static(b":\n\n"));
    }

    /// Ends the streams of callers that may not read any more.
    pub(crate) fn end_refused(&self) {
        if self.are_none() {
            return;
        }
        let mut all = self.lock();
        all.retain(|reader| (reader.caller.may_read)());
        self.count.store(all.len(), Ordering::Relaxed);
    }

    pub(crate) fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }

    fn put_to(&self, is_wanted: impl Fn(&Reader) -> bool, bytes: &Bytes) {
        let mut all = self.lock();
        all.retain(|reader| match is_wanted(reader) {
            true => match reader.queue.try_send(bytes.clone()) {
                Ok(()) => true,
                Err(mpsc::error::TrySendError::Closed(_)) => false,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    self.cut.fetch_add(1, Ordering::Relaxed);
                    let caller = &*base::shown(&reader.caller.name);
                    tracing::warn!(
                        caller,
                        queued = EVENTS_MAX,
                        "event stream closed: the reader \
                    is too slow"
                    );
                    false
                }
            },
            false => !reader.queue.is_closed(),
        });
        self.count.store(all.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn oldest_of_greedier(all: &[Reader], name: &str) -> Option<usize> {
    let count = |name: &str| all.iter().filter(|reader| reader.caller.name == name).count();
    let greediest =
        all.iter().map(|reader| reader.caller.name.as_str()).max_by_key(|it| count(it))?;
    let is_greedier = count(greediest) > count(name) + 1;
    all.iter().position(|reader| reader.caller.name == greediest).filter(|_| is_greedier)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::table;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn connected(client_id: &str) -> Happened<'_> {
        Happened { client_id: Some(client_id), ..Happened::of_broker(&table::CONNECTED, json!({})) }
    }

    fn texts(reading: &mut Reading) -> Vec<String> {
        let next = || reading.queue.try_recv().ok();
        let all = std::iter::from_fn(next).map(|bytes| String::from_utf8_lossy(&bytes).into());
        all.filter(|text: &String| !text.starts_with(':')).collect()
    }

    #[test]
    fn readers_get_what_they_want() {
        let readers = Readers::default();
        assert!(readers.are_none());
        let mut all = readers.add(Caller::always("a"), Wanted::default()).unwrap();
        let one = Wanted { client_id: Some("c1".into()), ..Wanted::default() };
        let may_read = Arc::new(AtomicBool::new(true));
        let asked = may_read.clone();
        let b =
            Caller { name: "b".into(), may_read: Box::new(move || asked.load(Ordering::Relaxed)) };
        let mut one = readers.add(b, one).unwrap();
        let bans = Wanted { full_type: Some("quelea.ban.".into()), ..Wanted::default() };
        let mut bans = readers.add(Caller::always("c"), bans).unwrap();
        readers.put(&connected("c1"), "1", "{}");
        readers.put(&connected("c2"), "2", "{}");
        readers.put(&Happened::of_broker(&table::BAN_ADDED, json!({})), "3", "{}");
        let first = "id: 1\nevent: quelea.session.connected\ndata: {}\n\n";
        assert_eq!(texts(&mut all).len(), 3);
        assert_eq!(texts(&mut one), [first]);
        assert_eq!(texts(&mut bans).len(), 1);
        drop(all);
        readers.end_refused();
        assert!(!one.queue.is_closed());
        may_read.store(false, Ordering::Relaxed);
        readers.end_refused();
        assert!(one.queue.is_closed());
        readers.beat(1);
        assert!(!readers.are_none());
        drop(bans);
        readers.put(&connected("c1"), "4", "{}");
        assert!(readers.are_none());
    }

    #[test]
    fn who_does_not_read_is_cut_and_the_places_are_few() {
        let readers = Readers::default();
        let mut own: Vec<_> = (0..READERS_MAX)
            .map(|_| readers.add(Caller::always("x"), Wanted::default()).unwrap())
            .collect();
        assert!(readers.add(Caller::always("x"), Wanted::default()).is_none());
        let mut deaf = own.remove(0);
        for number in 0..2 * EVENTS_MAX {
            readers.put(&connected("c"), "1", "{}");
            if number % 100 == 0 {
                own.iter_mut().for_each(|one| drop(texts(one)));
            }
        }
        assert_eq!(readers.cut(), 1);
        assert_eq!(texts(&mut deaf).len(), EVENTS_MAX - 1);
        assert!(
            deaf.queue.is_closed() && readers.add(Caller::always("x"), Wanted::default()).is_some()
        );
    }

    #[test]
    fn no_caller_keeps_the_others_from_reading() {
        let readers = Readers::default();
        let mut own: Vec<_> = (0..READERS_MAX)
            .map(|_| readers.add(Caller::always("x"), Wanted::default()).unwrap())
            .collect();
        assert!(
            readers.add(Caller::always("x"), Wanted::default()).is_none(),
            "its own are as many as there may be"
        );
        let others: Vec<_> = (0..READERS_MAX / 2)
            .map(|_| readers.add(Caller::always("y"), Wanted::default()).unwrap())
            .collect();
        assert!(readers.add(Caller::always("y"), Wanted::default()).is_none(), "that is its share");
        let _third = readers.add(Caller::always("z"), Wanted::default()).unwrap();
        own.extend(others);
        let open = own.iter_mut().map(|one| {
            drop(texts(one));
            !one.queue.is_closed()
        });
        assert_eq!(open.filter(|is_open| *is_open).count(), READERS_MAX - 1);
    }
}
