//! Limits that follow from the machine where nobody has said otherwise, each with its reason.
//!
//! All that is held for clients is a part of `memory_bytes_max`, and the parts together are less
//! than the whole: so no kind of thing that clients make the broker hold takes all of it.

use super::keys::{Limits, Server};
use super::machine::Machine;
use super::schema::bytes;
use super::{AUTO, THREADS_MAX, Value};

/// A value that was `auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// Dotted, as in `limits.memory_bytes_max`.
    pub key: &'static str,
    /// For people.
    pub value: String,
    pub reason: String,
}

/// Resolves what is `auto`, and notes it.
#[derive(Debug, Default)]
pub(super) struct Deriving {
    pub(super) notes: Vec<Derived>,
}

impl Deriving {
    pub(super) fn machine(&mut self, server: &mut Server, limits: &mut Limits, machine: &Machine) {
        self.threads(server, machine);
        self.limits(limits, machine);
    }

    fn threads(&mut self, server: &mut Server, machine: &Machine) {
        let cores = machine.cores;
        let mut resolve = |key, value: &mut u16, auto: u16, reason: &str| {
            if *value == 0 {
                *value = auto.clamp(1, THREADS_MAX);
                self.note(key, value.to_string(), reason.to_owned());
            }
        };
        let one_each = format!("one for each of {cores} cores");
        resolve("server.workers", &mut server.workers, cores, &one_each);
        let cores_rule = format!("a quarter of {cores} cores, at least one");
        resolve("server.acceptor_threads", &mut server.acceptor_threads, cores / 4, &cores_rule);
    }

    /// A data directory keeps its number of shards when it moves to a larger machine, so there may
    /// be more of them than workers. Without logs the next start chooses the number again.
    pub(super) fn shards(&mut self, server: &mut Server, has_journal: bool, machine: &Machine) {
        if server.shards != 0 {
            return;
        }
        let reason;
        (server.shards, reason) = match has_journal {
            true => {
                let reason = format!("one for each of {} cores, at least 4", machine.cores);
                (logged_shards(server, machine), reason)
            }
            false => (server.workers, "one for each worker".to_owned()),
        };
        self.note("server.shards", server.shards.to_string(), reason);
    }

    fn limits(&mut self, limits: &mut Limits, machine: &Machine) {
        let there = show_bytes(machine.memory_bytes);
        let whole = machine.memory_bytes / 10 * 8;
        let reason = format!("80 % of the {there} memory of the machine or cgroup");
        self.bytes("limits.memory_bytes_max", (&mut limits.memory_bytes_max, 0), whole, reason);
        let whole = limits.memory_bytes_max;

        self.connections(&mut limits.connections_max, machine.open_files_max);

        // At least one of the largest from each address, whatever the machine.
        let least = u64::from(limits.connect_bytes_max) * 8;
        let key = "limits.arrivals_bytes_max";
        let reason = "a sixteenth of memory_bytes_max, at least 8 of the largest CONNECTs".into();
        self.bytes(key, (&mut limits.arrivals_bytes_max, 0), (whole / 16).max(least), reason);
        let key = "limits.arrivals_bytes_per_address_max";
        let own = limits.arrivals_bytes_max / 4;
        let reason = "a quarter of arrivals_bytes_max".into();
        self.bytes(key, (&mut limits.arrivals_bytes_per_address_max, 0), own, reason);

        let key = "limits.incoming_bytes_max";
        let reason = "an eighth of memory_bytes_max".into();
        self.bytes(key, (&mut limits.incoming_bytes_max, 0), whole / 8, reason);
        let key = "limits.incoming_bytes_per_user_max";
        let own = limits.incoming_bytes_max / 4;
        let reason = "a quarter of incoming_bytes_max".into();
        self.bytes(key, (&mut limits.incoming_bytes_per_user_max, 0), own, reason);

        let key = "limits.retained_bytes_max";
        let reason = "a quarter of memory_bytes_max".into();
        self.bytes(key, (&mut limits.retained_bytes_max, AUTO), whole / 4, reason);
        if limits.retained_messages_max == AUTO as u32 {
            let messages = limits.retained_bytes_max / RETAINED_BYTES_EACH;
            limits.retained_messages_max = u32::try_from(messages).unwrap_or(u32::MAX);
            let reason = format!("one for each {RETAINED_BYTES_EACH} bytes of retained_bytes_max");
            self.note("limits.retained_messages_max", messages.to_string(), reason);
        }
        if limits.retained_bytes_per_user_max == 0 {
            let most = show_bytes(limits.retained_bytes_max / 2);
            let reason = "as much as it leaves free: alone, half of retained_bytes_max".into();
            self.note("limits.retained_bytes_per_user_max", most, reason);
        }
        let key = "limits.queues_bytes_max";
        let reason = "a quarter of memory_bytes_max".into();
        self.bytes(key, (&mut limits.queues_bytes_max, 0), whole / 4, reason);
        let key = "limits.sessions_bytes_max";
        let reason = "an eighth of memory_bytes_max".into();
        self.bytes(key, (&mut limits.sessions_bytes_max, 0), whole / 8, reason);
        let key = "limits.queued_bytes_max";
        let own = (whole / 16).clamp(QUEUED_BYTES_MIN, QUEUED_BYTES_MAX);
        let reason = "a sixteenth of memory_bytes_max, 1 MiB to 256 MiB".into();
        self.bytes(key, (&mut limits.queued_bytes_max, 0), own, reason);
    }

    /// Memory for streams and rules.
    pub(super) fn routing(&mut self, mut bytes_max: u64, limits: &Limits) -> u64 {
        let key = "routing.memory_bytes_max";
        let reason = "an eighth of memory_bytes_max".into();
        self.bytes(key, (&mut bytes_max, 0), limits.memory_bytes_max / 8, reason);
        bytes_max
    }

    /// A connection more than there are descriptors would wait in the system's queue, and with it
    /// everybody, instead of being told.
    fn connections(&mut self, connections_max: &mut u32, open_files_max: Option<u64>) {
        let Some(files) = open_files_max else { return };
        let own = (files / OWN_FILES_PART).clamp(OWN_FILES_MIN, OWN_FILES_MAX);
        let possible = u32::try_from(files.saturating_sub(own).max(1)).unwrap_or(u32::MAX);
        if *connections_max == 0 || *connections_max > possible {
            *connections_max = possible;
            let reason = format!("what a limit of {files} open files allows (ulimit -Hn)");
            self.note("limits.connections_max", possible.to_string(), reason);
        }
    }

    pub(super) fn log(&mut self, bytes_max: &mut u64, least: u64, disk: Option<u64>) {
        if *bytes_max != AUTO {
            return;
        }
        let Some(disk) = disk else {
            *bytes_max = 0;
            return;
        };
        let reason = format!("80 % of the {} that are free for logs", show_bytes(disk));
        self.bytes(
            "durability.log_bytes_max",
            (bytes_max, AUTO),
            (disk / 10 * 8).max(least),
            reason,
        );
    }

    /// `value` with what in it stands for `auto`.
    fn bytes(
        &mut self,
        key: &'static str,
        (value, auto): (&mut u64, u64),
        derived: u64,
        reason: String,
    ) {
        if *value == auto {
            *value = derived;
            self.note(key, show_bytes(derived), reason);
        }
    }

    fn note(&mut self, key: &'static str, value: String, reason: String) {
        self.notes.push(Derived { key, value, reason });
    }
}

/// Shards of a broker with logs.
pub(super) fn logged_shards(server: &Server, machine: &Machine) -> u16 {
    match server.shards {
        0 => machine.cores.clamp(4, THREADS_MAX),
        shards => shards,
    }
}

/// Rounded to what people read.
pub(super) fn show_bytes(number: u64) -> String {
    let unit =
        [30, 20, 10].into_iter().find(|bits| number >> bits >= 8).map_or(1, |bits| 1 << bits);
    let shown = bytes(0, u64::MAX).show(&Value::Number(number / unit * unit));
    shown.trim_matches('"').to_owned()
}

/// What a small retained message takes, with its topic in the index.
const RETAINED_BYTES_EACH: u64 = 512;

/// Descriptors that are not for connections: logs, listeners, HTTP and the like.
const OWN_FILES_PART: u64 = 8;
const OWN_FILES_MIN: u64 = 64;
const OWN_FILES_MAX: u64 = 1024;

/// Bounds of what may be queued for one session.
const QUEUED_BYTES_MIN: u64 = 1 << 20;
const QUEUED_BYTES_MAX: u64 = 256 << 20;
