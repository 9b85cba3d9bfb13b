//! What an operator's tool may ask of a running broker: to hold its logs still for a backup.
//!
//! A Unix socket in the data directory: who may use it is who may read the data anyway, and it is
//! there whether HTTP is on or not. A hold lasts as long as its connection, so that a tool that
//! dies leaves nothing behind.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::mailbox::{Held, Item, Mailbox};

/// The name of the socket in the data directory.
pub(crate) const SOCKET: &str = "control";
/// What a tool writes first, and when it is through.
pub(crate) const HOLD: &str = "hold";
pub(crate) const DONE: &str = "done";
/// What it is answered: lines `file SHARD SEGMENT BYTES`, then `held`, then `released`.
pub(crate) const FILE: &str = "file";
pub(crate) const HELD: &str = "held";
pub(crate) const RELEASED: &str = "released";

/// The longest a backup may take: space is not reclaimed meanwhile.
const HOLD_MAX: Duration = Duration::from_secs(4 * 3600);
/// How long the tool may take for its first line, and the workers for their answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// The open socket. Dropping it removes the file; the thread ends with the process.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
}

impl Control {
    /// Opens the socket. The caller holds the lock of the directory, so a socket that is there is
    /// one that nobody serves.
    pub(super) fn open(
        directory: &Path,
        shards: usize,
        mailboxes: &Arc<[Arc<Mailbox>]>,
    ) -> io::Result<Self> {
        let path = directory.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let mailboxes = mailboxes.clone();
        // One tool at a time: others wait in the system's queue.
        let serve = move || {
            for stream in listener.incoming() {
                let served = stream.and_then(|stream| serve(&stream, shards, &mailboxes));
                if let Err(error) = served {
                    tracing::warn!(%error, "a backup did not end in order");
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

/// A hold on the logs of all workers.
struct Hold<'a>(&'a [Arc<Mailbox>]);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        for mailbox in self.0 {
            mailbox.put(Item::Release);
        }
    }
}

fn serve(stream: &UnixStream, shards: usize, mailboxes: &[Arc<Mailbox>]) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream).lines();
    if lines.next().transpose()?.as_deref() != Some(HOLD) {
        return writeln!(&mut &*stream, "the only request is {HOLD}");
    }
    let began = Instant::now();
    let hold = Hold(mailboxes);
    let held = hold_all(shards, mailboxes)?;
    tracing::info!("the logs are held still for a backup");
    let mut text = String::new();
    for Held { shard, segments } in held {
        for (segment, bytes) in segments {
            text.push_str(&format!("{FILE} {shard} {segment} {bytes}\n"));
        }
    }
    (&mut &*stream).write_all(format!("{text}{HELD}\n").as_bytes())?;
    stream.set_read_timeout(Some(HOLD_MAX))?;
    let last = lines.next().transpose();
    drop(hold);
    let seconds = began.elapsed().as_secs_f64();
    match last?.as_deref() {
        Some(DONE) => {
            tracing::info!(seconds, "the backup is done");
            writeln!(&mut &*stream, "{RELEASED}")
        }
        _ => Err(io::Error::other("its connection ended before it was done")),
    }
}

/// Asks all workers, and waits for the logs of all shards.
fn hold_all(shards: usize, mailboxes: &[Arc<Mailbox>]) -> io::Result<Vec<Held>> {
    let (sender, answers) = channel();
    for mailbox in mailboxes {
        mailbox.put(Item::Hold(sender.clone()));
    }
    let mut held = Vec::new();
    while held.len() < shards {
        let answer = answers.recv_timeout(PATIENCE);
        held.push(answer.map_err(|_| io::Error::other("a worker did not answer"))?);
    }
    held.sort_by_key(|log| log.shard);
    Ok(held)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A worker with two shards, which only knows about holding.
    struct Holder {
        mailboxes: Arc<[Arc<Mailbox>]>,
        holds: Arc<AtomicU32>,
        poll: mio::Poll,
    }

    impl Holder {
        fn new() -> Self {
            let poll = mio::Poll::new().unwrap();
            let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
            let mailboxes = Arc::new([Arc::new(Mailbox::new(waker))]);
            Self { mailboxes, holds: Arc::default(), poll }
        }

        /// Works until nobody has held anything `times` times.
        fn run(mut self, times: u32) {
            let mut events = mio::Events::with_capacity(8);
            let mut released = 0;
            while released < times {
                if self.mailboxes[0].fall_asleep() {
                    self.poll.poll(&mut events, None).unwrap();
                }
                self.mailboxes[0].wake_up();
                for item in self.mailboxes[0].take() {
                    match item {
                        Item::Hold(answer) => {
                            self.holds.fetch_add(1, Ordering::SeqCst);
                            for shard in [1, 0] {
                                let segments = vec![(7, 4096), (8, 10)];
                                answer.send(Held { shard, segments }).unwrap();
                            }
                        }
                        Item::Release => {
                            self.holds.fetch_sub(1, Ordering::SeqCst);
                            released += 1;
                        }
                        _ => unreachable!(),
                    }
                }
            }
        }
    }

    #[test]
    fn a_hold_lasts_as_long_as_its_connection() {
        let dir = tempfile::tempdir().unwrap();
        // A socket that a killed broker left behind.
        drop(UnixListener::bind(dir.path().join(SOCKET)).unwrap());
        let holder = Holder::new();
        let holds = holder.holds.clone();
        let control = Control::open(dir.path(), 2, &holder.mailboxes).unwrap();
        let worker = std::thread::spawn(move || holder.run(2));
        let connect = || UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        let hold = |mut stream: &UnixStream| {
            writeln!(stream, "{HOLD}").unwrap();
            let mut lines = BufReader::new(stream).lines();
            let told: Vec<String> =
                lines.by_ref().map(Result::unwrap).take_while(|line| line != HELD).collect();
            assert_eq!(told, ["file 0 7 4096", "file 0 8 10", "file 1 7 4096", "file 1 8 10"]);
        };

        let stream = connect();
        hold(&stream);
        assert_eq!(holds.load(Ordering::SeqCst), 1);
        // The tool dies.
        drop(stream);

        let mut stream = connect();
        hold(&stream);
        assert_eq!(holds.load(Ordering::SeqCst), 1, "the first hold is gone");
        writeln!(stream, "{DONE}").unwrap();
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).unwrap();
        assert_eq!(answer, format!("{RELEASED}\n"));
        worker.join().unwrap();
        assert_eq!(holds.load(Ordering::SeqCst), 0);

        drop(control);
        assert!(!dir.path().join(SOCKET).exists());
    }

    #[test]
    fn nothing_but_a_hold_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let holder = Holder::new();
        let _control = Control::open(dir.path(), 2, &holder.mailboxes).unwrap();
        let mut stream = UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        writeln!(stream, "GET / HTTP/1.1").unwrap();
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).unwrap();
        assert!(answer.contains(HOLD), "{answer}");
        assert!(!holder.mailboxes[0].has_items());
    }
}
