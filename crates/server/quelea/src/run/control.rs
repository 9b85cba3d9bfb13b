//! What an operator's tool may ask of a running broker: to pin its journals for a backup.
//!
//! A Unix socket in the data directory: who may use it is who may read the data anyway, and it is
//! there whether HTTP is on or not. A pin lasts as long as its connection, so that a tool that dies
//! leaves nothing behind.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use data::control::{DONE, FILE, MANIFEST, MARK, PIN, PINNED, SOCKET, UNPINNED, to_hex};

use super::mailbox::{Item, Mailbox};
use super::routing::StreamsHandle;
use super::worker::{Order, Pinned};
use crate::cluster::{ClusterStreamFiles, Member, Order as MemberOrder, PinnedCopy};

/// The longest a backup may take: space is not reclaimed meanwhile.
const PINNED_MAX: Duration = Duration::from_secs(4 * 3600);
/// How long the tool may take for its first line, and the workers for their answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The open socket. Dropping it removes the file; the thread ends with the process.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
}

impl Control {
    /// Opens the socket. The caller holds the lock of the directory, so a socket that is there is
    /// one that nobody serves.
    pub(super) fn open(directory: &Path, owner: Owner) -> io::Result<Self> {
        let path = directory.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        // One tool at a time: others wait in the system's queue.
        let serve = move || {
            for stream in listener.incoming() {
                let served = stream.and_then(|stream| serve(&stream, &owner));
                if let Err(error) = served {
                    tracing::warn!(%error, "backup aborted");
                }
            }
        };
        std::thread::Builder::new().name("control".into()).spawn(serve)?;
        Ok(Self { path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Left behind, it would be removed by the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Who has the files of the journals.
pub(super) enum Owner {
    /// The workers of a broker without a cluster.
    Workers {
        shards: usize,
        mailboxes: Arc<[Arc<Mailbox>]>,
        /// Files of streams are not deleted meanwhile. Not set: there are none.
        streams: Arc<OnceLock<StreamsHandle>>,
    },
    /// A node, whatever its role: its local copies.
    Member(Member),
}

impl Owner {
    fn pin(&self) -> io::Result<String> {
        let mut text = String::new();
        match self {
            Self::Workers { shards, mailboxes, streams } => {
                // Ahead of the journals: what these say of files stays true.
                if let Some(streams) = streams.get() {
                    streams.hold_files(ANSWER_TIMEOUT)?;
                }
                for Pinned { shard, segments, manifest } in pin_all(*shards, mailboxes)? {
                    say_journal(&mut text, shard, &segments, manifest.as_deref());
                }
            }
            Self::Member(member) => {
                hold_stream_files(member)?;
                let (sender, answer) = channel();
                member.order(MemberOrder::Pin(sender));
                let silent = |_| io::Error::other("the thread of the cluster did not answer");
                for pinned in answer.recv_timeout(ANSWER_TIMEOUT).map_err(silent)?? {
                    let PinnedCopy { shard, segments, manifest, mark } = pinned;
                    say_journal(&mut text, shard, &segments, manifest.as_deref());
                    if let Some(mark) = mark {
                        text.push_str(&format!("{MARK} {shard} {}\n", to_hex(&mark)));
                    }
                }
                // What the journals say of files is there, too.
                match &member.stream_files {
                    Some(files) if member.streams.get().is_none() => {
                        files.catch_up(ANSWER_TIMEOUT)?;
                    }
                    _ => {}
                }
            }
        }
        Ok(text)
    }

    /// False: the files did not stay as they were.
    fn unpin(&self) -> bool {
        match self {
            Self::Workers { mailboxes, streams, .. } => {
                for mailbox in mailboxes.iter() {
                    mailbox.put(Item::Order(Order::Unpin));
                }
                streams.get().into_iter().for_each(StreamsHandle::release_files);
                true
            }
            Self::Member(member) => {
                let (sender, answer) = channel();
                member.order(MemberOrder::Unpin(sender));
                member.streams.get().into_iter().for_each(StreamsHandle::release_files);
                member.stream_files.iter().for_each(ClusterStreamFiles::release);
                answer.recv_timeout(ANSWER_TIMEOUT).unwrap_or(false)
            }
        }
    }
}

/// Files of streams are not deleted meanwhile, whatever the role of the node is.
fn hold_stream_files(member: &Member) -> io::Result<()> {
    if let Some(streams) = member.streams.get() {
        streams.hold_files(ANSWER_TIMEOUT)?;
    }
    match &member.stream_files {
        Some(files) => files.hold(ANSWER_TIMEOUT),
        None => Ok(()),
    }
}

fn say_journal(text: &mut String, shard: u16, segments: &[(u32, u64)], manifest: Option<&[u8]>) {
    for (segment, bytes) in segments {
        text.push_str(&format!("{FILE} {shard} {segment} {bytes}\n"));
    }
    if let Some(manifest) = manifest {
        text.push_str(&format!("{MANIFEST} {shard} {}\n", to_hex(manifest)));
    }
}

/// Pins the journals as long as it lives.
struct Pin<'a>(Option<&'a Owner>);

impl Pin<'_> {
    fn end(mut self) -> bool {
        self.0.take().is_some_and(Owner::unpin)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.take().map(Owner::unpin);
    }
}

fn serve(stream: &UnixStream, owner: &Owner) -> io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut lines = BufReader::new(stream).lines();
    if lines.next().transpose()?.as_deref() != Some(PIN) {
        return writeln!(&mut &*stream, "the only request is {PIN}");
    }
    let began = Instant::now();
    let pin = Pin(Some(owner));
    let text = owner.pin()?;
    tracing::info!("backup started: the logs keep all segments until it is done");
    (&mut &*stream).write_all(format!("{text}{PINNED}\n").as_bytes())?;
    stream.set_read_timeout(Some(PINNED_MAX))?;
    let last = lines.next().transpose();
    let stayed = pin.end();
    let seconds = began.elapsed().as_secs_f64();
    match last?.as_deref() {
        Some(DONE) if !stayed => {
            Err(io::Error::other("the local copy was rebuilt from the stream during the backup"))
        }
        Some(DONE) => {
            tracing::info!(seconds, "backup done");
            writeln!(&mut &*stream, "{UNPINNED}")
        }
        _ => Err(io::Error::other("the connection of the backup was closed before it was done")),
    }
}

/// Asks all workers, and waits for the journals of all shards.
fn pin_all(shards: usize, mailboxes: &[Arc<Mailbox>]) -> io::Result<Vec<Pinned>> {
    let (sender, answers) = channel();
    for mailbox in mailboxes {
        mailbox.put(Item::Order(Order::Pin(sender.clone())));
    }
    let mut journals = Vec::new();
    while journals.len() < shards {
        let answer = answers.recv_timeout(ANSWER_TIMEOUT);
        journals.push(answer.map_err(|_| io::Error::other("a worker did not answer"))?);
    }
    journals.sort_by_key(|journal| journal.shard);
    Ok(journals)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::run::worker::EventWaker;

    /// A worker with two shards, which only knows how to pin.
    struct Pinner {
        mailboxes: Arc<[Arc<Mailbox>]>,
        pins: Arc<AtomicU32>,
        poll: mio::Poll,
    }

    impl Pinner {
        fn new() -> Self {
            let poll = mio::Poll::new().unwrap();
            let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
            let mailboxes = Arc::new([Arc::new(Mailbox::new(EventWaker(waker)))]);
            Self { mailboxes, pins: Arc::default(), poll }
        }

        fn owner(&self) -> Owner {
            let streams = Arc::default();
            Owner::Workers { shards: 2, mailboxes: self.mailboxes.clone(), streams }
        }

        /// Works until `times` pins have ended.
        fn run(mut self, times: u32) {
            let mut events = mio::Events::with_capacity(8);
            let mut ended = 0;
            while ended < times {
                if self.mailboxes[0].fall_asleep() {
                    match self.poll.poll(&mut events, None) {
                        // The process was stopped and goes on.
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        polled => polled.unwrap(),
                    }
                }
                self.mailboxes[0].wake_up();
                for item in self.mailboxes[0].take() {
                    match item {
                        Item::Order(Order::Pin(answer)) => {
                            self.pins.fetch_add(1, Ordering::SeqCst);
                            for shard in [1, 0] {
                                let segments = vec![(7, 4096), (8, 10)];
                                let manifest = Some(vec![7, 200, 0, 0]);
                                answer.send(Pinned { shard, segments, manifest }).unwrap();
                            }
                        }
                        Item::Order(Order::Unpin) => {
                            self.pins.fetch_sub(1, Ordering::SeqCst);
                            ended += 1;
                        }
                        _ => unreachable!(),
                    }
                }
            }
        }
    }

    #[test]
    fn a_pin_lasts_as_long_as_its_connection() {
        let dir = tempfile::tempdir().unwrap();
        // A socket that a killed broker left behind.
        drop(UnixListener::bind(dir.path().join(SOCKET)).unwrap());
        let pinner = Pinner::new();
        let pins = pinner.pins.clone();
        let control = Control::open(dir.path(), pinner.owner()).unwrap();
        let worker = std::thread::spawn(move || pinner.run(2));
        let connect = || UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        let pin = |mut stream: &UnixStream| {
            writeln!(stream, "{PIN}").unwrap();
            let mut lines = BufReader::new(stream).lines();
            let answers: Vec<String> =
                lines.by_ref().map(Result::unwrap).take_while(|line| line != PINNED).collect();
            let files = |shard| [format!("file {shard} 7 4096"), format!("file {shard} 8 10")];
            let manifest = |shard| [format!("manifest {shard} 07c8")];
            assert_eq!(answers, [&files(0)[..], &manifest(0), &files(1), &manifest(1)].concat());
        };

        let stream = connect();
        pin(&stream);
        assert_eq!(pins.load(Ordering::SeqCst), 1);
        // The tool dies.
        drop(stream);

        let mut stream = connect();
        pin(&stream);
        assert_eq!(pins.load(Ordering::SeqCst), 1, "the first pin is gone");
        writeln!(stream, "{DONE}").unwrap();
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).unwrap();
        assert_eq!(answer, format!("{UNPINNED}\n"));
        worker.join().unwrap();
        assert_eq!(pins.load(Ordering::SeqCst), 0);

        drop(control);
        assert!(!dir.path().join(SOCKET).exists());
    }

    #[test]
    fn nothing_but_a_pin_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let pinner = Pinner::new();
        let _control = Control::open(dir.path(), pinner.owner()).unwrap();
        let mut stream = UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        writeln!(stream, "GET / HTTP/1.1").unwrap();
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).unwrap();
        assert!(answer.contains(PIN), "{answer}");
        assert!(!pinner.mailboxes[0].has_items());
    }
}
