//! Planted bugs, to prove that the oracle sees them.

use broker::RetainedFlaw;
use broker::cells::gateway::GatewayFlaw;

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// What stands for another cell.
    Gateway(GatewayFlaw),
    /// A frame between cells is lost, and its lane does not notice.
    LoseFrames,
    /// A frame is delivered twice.
    DoubleFrames,
    /// What was under way from an earlier owner is delivered to the next one.
    KeepOldFrames,
    /// Changes of a summary do not keep their order.
    SpreadChanges,
    /// A cell hears of filters, and not of the depths at which they begin.
    ForgetDepths,
    /// The owner of a cell begins with serials that the one before may have given.
    SameSerials,
    /// Mail that comes again is answered at once, though the first is not committed.
    AnswerRepetitions,
    /// A serial is known again only where something was kept.
    NoteKeptOnly,
    /// Shards ask for retained messages, or answer such questions, too early.
    Retained(RetainedFlaw),
    /// Wills of clients that were lost with the broker wait for ever.
    HoldLeftWills,
    /// They do not wait for their clients.
    HurryLeftWills,
    LoseMail,
    /// What a write did not take is forgotten.
    ForgetRest,
    /// A read that left something is taken for one that did not.
    HideRest,
    /// What a transport itself has to say is not sent.
    HideOwn,
    /// Nobody hears that a full socket has room again.
    StayFull,
    /// What was put into a mailbox second is taken first.
    SwapItems,
    /// Who is woken sleeps on.
    SleepOn,
    /// A shard that has changed is not looked at.
    ForgetMarks,
    /// When a shard has something to do by itself is asked once only.
    KeepDeadlines,
    DoubleMail,
    /// A shard that is asked answers more than once, at once or later. The broker is to stand that:
    /// no promise is broken.
    AnswerTwice,
    SwapMail,
    /// A live message overtakes one of QoS 2 of its publisher and topic.
    OvertakeLive,
    /// A message to be retained does.
    OvertakeRetained,
    /// A shard says that it has heard of members before it has.
    HearEarly,
    /// A shard is not told that its mail was dealt with.
    LoseTaken,
    /// The home of a group is not told that a member has acknowledged a message.
    LoseGroupDone,
    LoseSession,
    /// Connections have the numbers of those before them.
    ReuseNumbers,
    /// A charge is not given back.
    KeepCharge,
    /// Memory is short, and those who hold most are not told to go.
    SpareLargest,
    /// No memory is left to anybody.
    RefuseAll,
    /// Users of a namespace share by themselves, not as its users.
    ForgetNamespaces,
    /// Publishers whose pause is over are read on only while no credit window is full.
    CouplePauses,
    /// One client may ask for as much as it likes.
    IgnoreBudget,
    /// The access rules of a shard are lost.
    OpenAccess,
    /// The end of a connection is not seen.
    ForgetBroken,
    /// A shard never hears of new rules.
    KeepOldRules,
    /// A client goes on by what its last credential said of it.
    KeepOldPrincipal,
    /// Who is banned is not cut.
    KeepBanned,
    /// An operator is told that a session is gone, and it is not.
    ForgetPurge,
    /// An operator is told that many are ended, and nothing has happened.
    IgnoreSweeps,
    /// Operators who trace packets are not shown some of them.
    HideTraced,
    /// Some spans are neither reported nor counted as lost.
    LoseSpans,
    /// What waits under the old options of a subscription is lost when they change.
    ForgetOldOptions,
    /// An operator is told that a publish is kept before it is.
    AnswerOperatorEarly,
    /// Credentials do not end.
    KeepCredentials,
    /// Another user passes for the one whose client id it shows.
    IgnoreOwner,
    /// Disks report syncs that they have not done.
    IgnoreSyncs,
    /// Disks report manifests that they have not written, all but the first.
    IgnoreManifests,
    /// A sync counts for what was written while it was under way.
    SyncLaterWrites,
    /// A driver writes in place while the commit thread has earlier writes.
    OvertakeThread,
    /// No sync of level `disk` is due while the disk has a commit.
    StarveSyncs,
    /// The answers to what was written in place are not sent in the same turn.
    StrandAnswers,
    /// The commit thread answers a commit before its sync.
    AnswerBeforeSync,
    /// The commit thread reports the fault of one journal to another one.
    FailNeighbour,
    /// Commits are reported when they are handed to the disk.
    CommitEarly,
    /// A commit is never reported.
    LoseCompletion,
    /// Some facts of this record kind are not found at a start.
    ForgetFact(u8),
    /// A start does not know how the wall clock was set.
    ForgetClock,
    /// A will is cleared in the journal, and those who are owed it are not yet told.
    ClearWillsEarly,
    /// The newest record is not found at a start.
    ForgetNewest,
    /// Nothing is found at a start.
    ForgetAll,
    /// A segment is not read at a start.
    SkipSegment,
    /// An active node reads and writes without looking at its lease.
    ServeWithoutLease,
    /// Commits are reported when the engine is asked.
    CommitBeforeQuorum,
    /// A standby does not replay some records.
    SkipRecord,
    /// An append of which the answer is lost is written again, as a new one.
    WriteTwice,
    /// What is read of a stream after the lease was taken is missed.
    MissTail,
    /// The engine is asked to append wherever the end is.
    AppendUnfenced,
    /// A purge removes what is still needed.
    PurgeTooFar,
    /// The clock of a node runs at a twentieth of the speed.
    DriftAway,
    /// A new active node does not claim the stream.
    SkipClaim,
    /// An append of which the answer is lost is reported as refused for certain.
    RefuseUnknown,
    /// A node takes the data of another cluster for its own.
    TakeForeign,
    /// A node has as many shards as its configuration says, and not as its cluster.
    OwnShards,
    /// A process is known by the name of its node only.
    SameInstance,
    /// Messages of a later version are taken for void.
    SkipLater,
    /// A takeover reads the small file, and does not make it its own.
    ReadFilesOnly,
    /// A process ends when the engine does not answer while it begins to serve.
    ExitOnSilence,
    /// What is skipped behind a refused commit of one shard is skipped of its neighbour.
    SkipNeighbour,
    /// A shard that writes little is not asked to give up what keeps the stream long.
    KeepIdleSegments,
    /// A fault of the owner of streams.
    Hub(streams::Flaw),
    /// A fault of what journals have of streams.
    Streams(broker::streams::StreamFlaw),
    /// All processes have the same number, so an ordinal that is given twice has one event.
    ReuseLife,
    /// A write that a crash has met is carried out by the next process.
    LateBlock,
    /// A node of a cluster gives its files of streams numbers that another one has given.
    SharedFileNumbers,
    /// A node of a cluster takes over without the last messages of the files of streams.
    CopyBehind,
}

impl Sabotage {
    /// It is there as long as the connection.
    pub(crate) const fn is_of_sockets(self) -> bool {
        matches!(self, Self::ForgetRest | Self::HideRest | Self::HideOwn | Self::StayFull)
    }
}

/// Record kinds of the journal, by what they say.
pub mod fact {
    pub const SESSION_OPENED: u8 = 1;
    pub const SUBSCRIBED: u8 = 4;
    pub const UNSUBSCRIBED: u8 = 5;
    pub const MESSAGE: u8 = 6;
    pub const PROGRESS: u8 = 7;
    pub const IN_FLIGHT: u8 = 8;
    pub const RELEASED: u8 = 10;
    pub const RETAINED: u8 = 11;
    pub const RETAINED_CLEARED: u8 = 12;
    pub const WILL: u8 = 13;
    pub const WILL_CLEARED: u8 = 14;
    pub const GROUP_OPENED: u8 = 15;
    pub const TAKEN: u8 = 17;
    pub const WILL_TAKEN: u8 = 18;
}
