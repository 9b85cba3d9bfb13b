//! From the definitions and what journals and files have to a running owner of streams.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use base::Clock;
use broker::streams::{
    ConsumerNumber, Flag, StreamChange, StreamFound, StreamNumber, StreamOrder, StreamSet,
    StreamSettings, StreamsFound,
};
use broker::{Calendar, Durability, Scope, Shard};
use data::{NumberedStream, Numbers, STREAMS_DIRECTORY, Stamps, StreamDisk, StreamFiles};
use identity::namespaces::Namespaces;
use routing::definitions::{
    self, Entry, RuleSpec, StreamDurability, StreamSpec, TargetSpec, WhenFull,
};
use routing::{Definitions, Destination};
use storage::stream::StreamLimits;
use streams::{ConsumerDefinition, Full, Hub, HubSettings, Order, Start, StreamDefinition};

use super::board::{Board, Defined};
use super::figures::Names;
use super::in_cluster::{InCluster, after_disk};
use super::inbox::{Inbox, Input};
use super::owner::{Files, Owner};
use super::report::Reporter;
use super::sending::Targets;
use super::sources::{read_own, write_own};
use super::tenants::without_stale;
use super::{LoadedDefinitions, OperatorFile, TargetSettings};
use crate::life_cycle::LifeCycle;
use crate::life_cycle::line_pace::LinePace;
use crate::run::mailbox::{Item, Mailbox};
use crate::run::spawn;

/// Orders of the start are not the hub's: it ignores their answers.
const NO_ORDER: u64 = u64::MAX;

/// What the owner is made on.
pub(crate) struct Ground {
    pub(crate) directory: PathBuf,
    pub(crate) stamps: Stamps,
    pub(crate) namespaces: Arc<Namespaces>,
    pub(crate) memory_bytes_max: u64,
    pub(crate) free_disk_bytes_min: u64,
    pub(crate) clock: Clock,
    /// None: there is no cluster.
    pub(crate) cluster: Option<InCluster>,
}

/// What is defined, and what follows from that.
pub(super) struct InForce {
    pub(super) file: Arc<OperatorFile>,
    /// What the API has defined.
    pub(super) own: Vec<Entry>,
    /// Both as one.
    pub(super) loaded: LoadedDefinitions,
    pub(super) numbers: Numbers,
    pub(super) set: Arc<StreamSet>,
}

/// An owner that waits for the workers.
pub(in crate::run) struct Prepared {
    hub: Hub,
    files: Files,
    in_force: InForce,
    assigned: Assigned,
    board: Arc<Board>,
    inbox: Inbox,
    inputs: Receiver<Input>,
    ground: Ground,
}

/// The running owner, for the rest of the broker.
#[derive(Clone)]
pub(crate) struct StreamsHandle {
    pub(crate) inbox: Inbox,
    pub(crate) board: Arc<Board>,
}

impl StreamsHandle {
    /// No file of a stream is deleted until [`StreamsHandle::release_files`], which is to follow
    /// whatever happens.
    ///
    /// # Errors
    ///
    /// The owner does not answer in this time.
    pub(in crate::run) fn hold_files(&self, time_max: Duration) -> std::io::Result<()> {
        self.ask(time_max, |owner| owner.holds += 1)
    }

    /// Has the owner answer a question.
    ///
    /// # Errors
    ///
    /// It does not in this time.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        time_max: Duration,
        question: impl FnOnce(&mut Owner) -> T + Send + 'static,
    ) -> std::io::Result<T> {
        let (answer, answered) = channel();
        self.inbox.call(move |owner| {
            // Who asked may have given up.
            let _ = answer.send(question(owner));
        });
        receive(&answered, time_max)
    }

    /// Has the owner change definitions, and waits until they are in force.
    ///
    /// # Errors
    ///
    /// They are not in this time.
    pub(super) fn change<E: Send + 'static>(
        &self,
        time_max: Duration,
        change: impl FnOnce(&mut Owner) -> Result<(), E> + Send + 'static,
    ) -> std::io::Result<Result<(), E>> {
        let (answer, answered) = channel();
        self.inbox.call(move |owner| {
            let done = change(owner);
            // Who asked may have given up.
            owner.answer_in_force(done, move |done| drop(answer.send(done)));
        });
        receive(&answered, time_max)
    }

    pub(in crate::run) fn release_files(&self) {
        self.inbox.call(Owner::release_files);
    }
}

fn receive<T>(answered: &Receiver<T>, time_max: Duration) -> std::io::Result<T> {
    let silent = |_| std::io::Error::other("the thread of streams did not answer in time");
    answered.recv_timeout(time_max).map_err(silent)
}

/// The owner's thread.
pub(in crate::run) struct Streams {
    pub(in crate::run) handle: StreamsHandle,
    thread: JoinHandle<()>,
}

/// Streams of a broker whose configuration has none stay as they are, with all that is in them.
pub(in crate::run) fn note_unused(shards: &mut [&mut Shard]) {
    let has_any = |shard: &mut &mut Shard| !shard.streams_found().streams.is_empty();
    if shards.iter_mut().fold(false, |any, shard| has_any(shard) | any) {
        tracing::warn!(
            "the data directory has streams, and routing.file is not set: nothing is stored in \
            them or sent from them"
        );
    }
}

/// Opens streams and consumers, and says to each shard what it has to store. Before the workers
/// start.
///
/// # Errors
///
/// A file of a stream, or the file of numbers, cannot be used.
pub(in crate::run) fn prepare(
    file: OperatorFile,
    ground: Ground,
    shards: &mut [&mut Shard],
) -> anyhow::Result<Prepared> {
    let known = Numbers::read(&ground.stamps, &ground.directory)?;
    let own = own_definitions(&file, &ground, known.has_definitions())?;
    let loaded = file.whole(&own).context("definitions of the API do not fit the file of rules")?;
    let definitions = &loaded.definitions;
    let found: Vec<StreamsFound> = shards.iter_mut().map(|it| it.streams_found()).collect();
    let numbers = number(known, definitions, &ground, &found)?;
    if let Some(cluster) = &ground.cluster {
        cluster.take_files(&found)?;
    }
    let (sender, inputs) = channel();
    let is_behind: Arc<Flag> = Arc::default();
    let half = ground.memory_bytes_max / 2;
    let inbox = Inbox::new(sender, half, Arc::clone(&is_behind));
    let life = u64::from_le_bytes(base::random());
    let settings = settings_of_all(definitions, &numbers, &ground)?;
    let set = Arc::new(StreamSet { life, streams: settings, is_behind });
    let order = || StreamOrder { id: NO_ORDER, change: StreamChange::Set(Arc::clone(&set)) };
    let now_ms = ground.clock.now_ms();
    shards.iter_mut().for_each(|shard| shard.on_stream_order(order(), now_ms));

    let mut hub = Hub::new(HubSettings {
        life,
        memory_max: usize::try_from(half).unwrap_or(usize::MAX),
        epoch: ground.cluster.as_ref().map_or(1, |cluster| cluster.epoch as u32),
        first_file: ground.cluster.as_ref().map_or(0, |it| cluster::first_file_of(it.epoch)),
        ..HubSettings::new(shards.len() as u16)
    });
    let files = open_streams(definitions, &numbers, &ground, &found, &mut hub)?;
    let assigned = add_consumers(&loaded, &numbers, &found, &mut hub)?;
    suspend_rules(&mut hub, &loaded, &numbers, &ground, now_ms);
    let board = Arc::new(Board::default());
    board.put_names(Names::new(&numbers, &loaded.definitions));
    board.put_defined(Defined::new(&file, &own));
    let in_force = InForce { file: Arc::new(file), own, loaded, numbers, set };
    Ok(Prepared { hub, files, in_force, assigned, board, inbox, inputs, ground })
}

/// What the API has defined. A crash may have come ahead of the deletion of what belongs to deleted
/// namespaces.
fn own_definitions(
    file: &OperatorFile,
    ground: &Ground,
    is_expected: bool,
) -> anyhow::Result<Vec<Entry>> {
    let stored = read_own(&ground.stamps, &ground.directory, is_expected)?;
    let own = without_stale(file.without_deleted(stored.clone()), &ground.namespaces);
    if own != stored
        && let Err(error) = write_own(&ground.stamps, &ground.directory, &own)
    {
        tracing::warn!(%error, "definitions of deleted namespaces not deleted");
    }
    Ok(own)
}

/// Gives each name its number, and stores that.
fn number(
    mut numbers: Numbers,
    definitions: &Definitions,
    ground: &Ground,
    found: &[StreamsFound],
) -> anyhow::Result<Numbers> {
    let streams = found.iter().flat_map(|found| found.streams.keys().map(|number| number.0 + 1));
    let consumers = found.iter().flat_map(|found| found.cursors.keys().map(|number| number.0 + 1));
    numbers.skip_to(streams.max().unwrap_or_default(), consumers.max().unwrap_or_default());
    if let Some(cluster) = &ground.cluster {
        cluster.check_defined(definitions, &numbers)?;
    }
    let before = numbers.clone();
    let streams = definitions.streams.iter().map(|stream| &*stream.name);
    numbers.set(streams, definitions.rules.iter().map(RuleSpec::name))?;
    if numbers != before {
        numbers
            .write(&ground.stamps, &ground.directory)
            .context("cannot store the numbers of streams")?;
    }
    Ok(numbers)
}

pub(super) fn settings_of_all(
    definitions: &Definitions,
    numbers: &Numbers,
    ground: &Ground,
) -> anyhow::Result<Vec<StreamSettings>> {
    let settings = definitions.streams.iter().map(|spec| {
        let number = numbers.stream(&spec.name).context("a stream has no number")?;
        let scope = ground.namespaces.scope_of(&spec.namespace);
        let scope = scope.with_context(|| {
            format!("stream '{}': namespace '{}' does not exist", spec.name, spec.namespace)
        })?;
        Ok(settings_of(spec, StreamNumber(number.number), scope))
    });
    settings.collect()
}

fn settings_of(spec: &StreamSpec, number: StreamNumber, scope: Scope) -> StreamSettings {
    let payload_bytes_max = spec.payload_bytes_max.unwrap_or(u64::MAX);
    StreamSettings {
        number,
        scope,
        filters: spec.filters.iter().map(|filter| filter.as_str().into()).collect(),
        qos_min: spec.qos_min,
        retain: spec.retained,
        payload_bytes_max: usize::try_from(payload_bytes_max).unwrap_or(usize::MAX),
        level: match spec.durability {
            StreamDurability::Disk => Durability::Disk,
            StreamDurability::Fsync => Durability::Fsync,
        },
        is_full: Arc::default(),
    }
}

fn open_streams(
    definitions: &Definitions,
    numbers: &Numbers,
    ground: &Ground,
    found: &[StreamsFound],
    hub: &mut Hub,
) -> anyhow::Result<Files> {
    let mut files = Files::default();
    for spec in &definitions.streams {
        let numbered = numbers.stream(&spec.name).context("a stream has no number")?;
        let number = StreamNumber(numbered.number);
        let own = open_files(ground, spec, numbered)?;
        let of_shards: BTreeMap<u16, StreamFound> = (0..)
            .zip(found)
            .filter_map(|(shard, found)| Some((shard, found.streams.get(&number)?.clone())))
            .collect();
        let recovered = own
            .recover(&reach_of(number, found))
            .with_context(|| format!("stream '{}'", spec.name))?;
        hub.add_stream(definition_of(spec, number, numbered.identity), recovered, &of_shards)?;
        files.0.insert(number, Arc::new(own));
    }
    remove_others(ground, &files)?;
    Ok(files)
}

/// The directory of a stream.
pub(super) fn open_files(
    ground: &Ground,
    spec: &StreamSpec,
    numbered: NumberedStream,
) -> anyhow::Result<StreamFiles> {
    let path = ground.directory.join(STREAMS_DIRECTORY).join(numbered.number.to_string());
    StreamFiles::open(&path, numbered.identity)
        .with_context(|| format!("stream '{}': {}", spec.name, path.display()))
}

/// How far each file must reach: as far as the shard says that has written its last block.
pub(super) fn reach_of(stream: StreamNumber, found: &[StreamsFound]) -> BTreeMap<u64, u64> {
    let mut reach = BTreeMap::new();
    let found = found.iter().filter_map(|found| found.streams.get(&stream));
    for (file, end) in found.flat_map(|found| &found.reach) {
        let known: &mut u64 = reach.entry(*file).or_default();
        *known = (*known).max(*end);
    }
    reach
}

/// Removes the files of streams that are not defined any more.
pub(super) fn remove_others(ground: &Ground, files: &Files) -> anyhow::Result<()> {
    let directory = ground.directory.join(STREAMS_DIRECTORY);
    remove_unknown(&directory, files)
        .with_context(|| format!("cannot remove streams from {}", directory.display()))
}

fn remove_unknown(directory: &Path, files: &Files) -> std::io::Result<()> {
    let known: BTreeSet<String> = files.0.keys().map(|number| number.0.to_string()).collect();
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<u32>().is_ok() && !known.contains(&name) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn definition_of(
    spec: &StreamSpec,
    number: StreamNumber,
    identity: [u8; 16],
) -> StreamDefinition {
    let limits = StreamLimits {
        file_bytes: spec.file_bytes,
        age_ms_max: spec.age_max_secs.map(|secs| secs.saturating_mul(1000)),
        bytes_max: spec.bytes_max,
        records_max: spec.messages_max,
        consumed: spec.consumed,
        ..StreamLimits::default()
    };
    let full = match spec.full {
        WhenFull::DropOldest => Full::DropOldest,
        WhenFull::Reject => Full::Reject,
    };
    StreamDefinition { number, name: spec.name.as_str().into(), limits, full, identity }
}

/// Consumers with the settings of their targets, and the topics there.
type Assigned = Vec<(ConsumerNumber, TargetSettings, String)>;

fn add_consumers(
    loaded: &LoadedDefinitions,
    numbers: &Numbers,
    found: &[StreamsFound],
    hub: &mut Hub,
) -> anyhow::Result<Assigned> {
    let mut assigned = Vec::new();
    for spec in &loaded.definitions.rules {
        let Some(number) = numbers.consumer(spec.name()).map(ConsumerNumber) else { continue };
        let (definition, settings, topic) = consumer_of(loaded, numbers, spec, number)?;
        let is_running = spec.rule.is_enabled() && !numbers.is_paused(number.0);
        let cursors = (0..).zip(found);
        let cursors =
            cursors.filter_map(|(shard, found)| Some((shard, found.cursors.get(&number)?.clone())));
        hub.add_consumer(definition, &cursors.collect())
            .with_context(|| format!("rule '{}'", spec.name()))?;
        if !is_running {
            hub.pause(number, 0);
        }
        assigned.push((number, settings, topic));
    }
    let known: BTreeSet<u32> = numbers.consumers().map(|(_, number)| number).collect();
    for (shard, found) in (0..).zip(found) {
        let unknown = found.cursors.keys().filter(|own| !known.contains(&own.0));
        unknown.for_each(|number| hub.forget_consumer(shard, *number));
    }
    Ok(assigned)
}

/// Rules of suspended namespaces send nothing.
pub(super) fn suspend_rules(
    hub: &mut Hub,
    loaded: &LoadedDefinitions,
    numbers: &Numbers,
    ground: &Ground,
    now_ms: u64,
) {
    let definitions = &loaded.definitions;
    for spec in &definitions.rules {
        let Some(number) = numbers.consumer(spec.name()).map(ConsumerNumber) else { continue };
        let stream = definitions.stream(&spec.stream);
        let is_open = stream.is_none_or(|stream| ground.namespaces.is_open(&stream.namespace));
        hub.set_suspended(number, !is_open, now_ms);
    }
}

/// The consumer of a rule, the settings of its target, and the topic there.
pub(super) fn consumer_of(
    loaded: &LoadedDefinitions,
    numbers: &Numbers,
    spec: &RuleSpec,
    number: ConsumerNumber,
) -> anyhow::Result<(ConsumerDefinition, TargetSettings, String)> {
    let definitions = &loaded.definitions;
    let number_of = |name: &str| {
        let numbered = numbers.stream(name);
        numbered.map(|it| StreamNumber(it.number)).with_context(|| format!("no stream '{name}'"))
    };
    let stream = definitions.stream(&spec.stream).context("a rule has no stream")?;
    let target = spec.rule.target().context("a rule has no target")?;
    let place = definitions.rules.iter().position(|it| it.name() == spec.name());
    let settings = place.and_then(|place| loaded.targets.get(place));
    let settings = settings.with_context(|| format!("no target '{}'", target.name))?.clone();
    let topic = match &target.destination {
        Destination::Kafka { topic, .. } => topic.clone(),
        Destination::Http { .. } => String::new(),
    };
    let dead_letter = spec.dead_letter.as_deref().map(number_of).transpose()?;
    let definition = ConsumerDefinition {
        number,
        name: spec.name().into(),
        stream: number_of(&spec.stream)?,
        namespace: stream.namespace.as_str().into(),
        rule: Arc::new(spec.rule.clone()),
        dispatch: spec.dispatch.clone(),
        order: match spec.order {
            definitions::Order::Topic => Order::Lanes,
            definitions::Order::None => Order::None,
        },
        start: match spec.start {
            definitions::Start::New => Start::New,
            definitions::Start::Beginning => Start::Beginning,
        },
        dead_letter,
        skip_expired: spec.skip_expired,
        in_flight_bytes_max: match definitions.target(&target.name) {
            Some(TargetSpec { namespace: Some(_), .. }) => TENANT_IN_FLIGHT_BYTES_MAX,
            _ => IN_FLIGHT_BYTES_MAX,
        },
    };
    Ok((definition, settings, topic))
}

/// Bytes of messages of a rule that are in flight. Policy: no more are read.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// The same of a rule that users of a namespace have defined. One larger message may be.
const TENANT_IN_FLIGHT_BYTES_MAX: usize = 2 << 20;

impl Prepared {
    /// For the workers, which report to it.
    pub(in crate::run) fn handle(&self) -> StreamsHandle {
        StreamsHandle { inbox: self.inbox.clone(), board: Arc::clone(&self.board) }
    }

    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(in crate::run) fn start(
        self,
        mailboxes: &Arc<[Arc<Mailbox>]>,
        life_cycle: &Arc<LifeCycle>,
        lines: &Arc<LinePace>,
    ) -> anyhow::Result<Streams> {
        let handle = self.handle();
        let Self { hub, files, in_force, assigned, board, inbox, inputs, ground } = self;
        let clock = ground.clock;
        let disk = StreamDisk::spawn(after_disk(inbox.clone(), ground.cluster.clone()))
            .context("cannot start the thread for files of streams")?;
        let mut targets =
            Targets::start(inbox.clone(), clock).context("cannot start the thread of targets")?;
        let mailbox = mailboxes[0].clone();
        let reporter = Reporter {
            life_cycle: life_cycle.clone(),
            lines: lines.clone(),
            publish: Box::new(move |message| mailbox.put(Item::Publish(0, message))),
            clock,
        };
        let mut consumers = Vec::new();
        for (consumer, settings, topic) in &assigned {
            targets.assign(*consumer, settings, topic)?;
            consumers.push(*consumer);
        }
        let mut owner = Owner {
            hub,
            files,
            targets,
            disk,
            inbox,
            mailboxes: mailboxes.clone(),
            board,
            reporter,
            clock,
            ground,
            in_force,
            orders: BTreeMap::new(),
            consumers,
            seeks: Vec::new(),
            awaiting: Vec::new(),
            look_ms: 0,
            holds: 0,
            calendar: Calendar::default(),
            is_disk_short: false,
            removed: Vec::new(),
            held: Vec::new(),
            ends_at: None,
        };
        // The API finds what there is from its first call on.
        owner.look(clock.now_ms());
        let thread = spawn("routing".to_owned(), None, move || owner.run(&inputs))?;
        Ok(Streams { handle, thread })
    }
}

impl Streams {
    /// Sends nothing more, and returns when what is known is in the journals, or after some
    /// seconds. Before the workers stop.
    pub(in crate::run) fn stop(self) {
        self.handle.inbox.put(Input::Stop);
        // A panic there has ended the process.
        let _ = self.thread.join();
    }
}
