//! Makes a data directory as a busy broker would leave it, so that the time of a start can be
//! measured: sessions with one subscription each, all offline, and a backlog.
//!
//! ```text
//! cargo run --profile quick -p quelea --example start_bench -- DIR SESSIONS MESSAGES PAYLOAD_BYTES
//! quelea serve --data DIR        the line "state restored" says what the start took
//! ```

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use broker::journal::{Fact, QueueNumber, SessionOpened, StoredMessage, Subscribed};
use broker::{Name, Settings, Shared};
use codec::{QoS, Version};
use data::{DataDir, JournalDisk};
use storage::{AppendError, Completion, Identity, Journal, Level, RecordKind, Status};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().context("DIR")?);
    let mut number =
        |name: &'static str| -> Result<u64> { args.next().context(name)?.parse().context(name) };
    let (sessions, messages) = (number("SESSIONS")?, number("MESSAGES")?);
    let payload = vec![0x5a; number("PAYLOAD_BYTES")? as usize];
    let data = DataDir::open(&dir)?;
    data.shard_count(SHARDS, true)?;
    let shared = Shared::new(Settings::default(), SHARDS, 0);
    for shard in 0..SHARDS {
        let clients: Vec<String> = (0..sessions)
            .map(|number| format!("client-{number:07}"))
            .filter(|client| shared.shard_of_client(Name::first(client)) == shard)
            .collect();
        let mut writer = Writer::open(&data, shard)?;
        writer.write_sessions(&clients)?;
        writer.write_messages(&clients, messages / u64::from(SHARDS), &payload)?;
        writer.close()?;
        println!("shard {shard}: {} sessions", clients.len());
    }
    Ok(())
}

struct Writer {
    journal: Journal,
    disk: JournalDisk,
    completions: Receiver<Completion>,
    front: Vec<u8>,
    begun: Instant,
}

impl Writer {
    fn open(data: &DataDir, shard: u16) -> Result<Self> {
        let files = data.journal_files(shard)?;
        let (sender, completions) = channel();
        let disk = JournalDisk::spawn(files, move |done| {
            done.into_iter().for_each(|done| drop(sender.send(done.completion)));
        })?;
        let id = u64::from(shard + 1).to_le_bytes();
        let id = std::array::from_fn(|at| id[at % 8]);
        let identity = Identity { id, shard, shards: SHARDS };
        let settings = storage::Settings::with_segment_bytes(SEGMENT_BYTES);
        let journal = Journal::create(identity, settings);
        Ok(Self { journal, disk, completions, front: Vec::new(), begun: Instant::now() })
    }

    fn write_sessions(&mut self, clients: &[String]) -> Result<()> {
        for (number, client_id) in clients.iter().enumerate() {
            let session = QueueNumber::new(number as u64 + 1).context("too many sessions")?;
            self.write(&Fact::SessionOpened(SessionOpened {
                session,
                version: Version::V5,
                opened_at_ms: OPENED_AT_MS,
                expiry_secs: u32::MAX,
                client_id,
                username: "",
            }))?;
            self.write(&Fact::Subscribed(Subscribed {
                session,
                options: 1,
                identifier: 0,
                serial: 0,
                filter: &format!("to/{client_id}"),
            }))?;
            let (at_ms, expiry_secs) = (OPENED_AT_MS + 1, u32::MAX);
            self.write(&Fact::SessionDetached { session, at_ms, expiry_secs })?;
        }
        Ok(())
    }

    /// All messages are assigned to a part of the sessions, in turn.
    fn write_messages(&mut self, clients: &[String], count: u64, payload: &[u8]) -> Result<()> {
        let owed = &clients[..clients.len().min(BACKLOGS)];
        for serial in 1..=count {
            let client_id = &owed[serial as usize % owed.len()];
            self.write(&Fact::Message(StoredMessage {
                serial,
                origin: None,
                queue: None,
                qos: QoS::AtLeastOnce,
                retain: false,
                expires_at_ms: u64::MAX,
                owner: "",
                author: 0,
                topic: &format!("to/{client_id}"),
                properties: &[],
                payload,
            }))?;
        }
        Ok(())
    }

    fn write(&mut self, fact: &Fact<'_>) -> Result<()> {
        self.front.clear();
        let rest = fact.encode(&mut self.front);
        loop {
            match self.journal.append(
                RecordKind::new(fact.kind()),
                &[&self.front, rest],
                Level::Disk,
            ) {
                Ok(_) => return Ok(()),
                Err(AppendError::Backlog { .. }) => self.turn()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Commands out, and at least one completion in.
    fn turn(&mut self) -> Result<()> {
        let now_ms = self.begun.elapsed().as_millis() as u64;
        self.journal.on_tick(now_ms);
        let mut commands = Vec::new();
        self.journal.take_commands(&mut commands, now_ms);
        for command in commands {
            if let Err(completion) = self.disk.submit(command, false) {
                bail!("the disk thread ended: {completion:?}");
            }
        }
        self.journal.on_completed(self.completions.recv_timeout(Duration::from_secs(60))?);
        Ok(())
    }

    fn close(mut self) -> Result<()> {
        self.journal.close();
        while self.journal.status() != Status::Closed {
            self.turn()?;
        }
        Ok(())
    }
}

const SHARDS: u16 = 4;
const SEGMENT_BYTES: u32 = 33 << 20;
/// Sessions of each shard that have a backlog.
const BACKLOGS: usize = 250;
const OPENED_AT_MS: u64 = 1_700_000_000_000;
