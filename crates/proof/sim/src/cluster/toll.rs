//! What has happened in cluster worlds.

macro_rules! toll {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What has happened in a cluster world.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Toll {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Toll {
            /// The sum of both.
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($name: self.$name + other.$name,)* }
            }

            /// All by name.
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

toll! {
    /// Journals were opened by another node than before.
    takeovers,
    /// Journals were opened by the same node again.
    returns,
    kills_of_active,
    kills_of_standby,
    /// A standby was killed before it had read its streams.
    kills_of_late_standby,
    /// All nodes at once.
    kills_of_all,
    /// A takeover was cut short.
    kills_of_opening,
    /// The active node and the leaders of the streams in one blow.
    kills_with_leader,
    /// A message could not be written to the local copy.
    local_faults,
    restarts_with_old_copy,
    restarts_with_torn_copy,
    restarts_with_empty_copy,
    pauses_of_active,
    pauses_of_standby,
    /// An active node woke up after another one had opened the journals.
    stale_wakes,
    /// An active node did without its lease for a while and went on.
    suspensions,
    /// Clients connected to a node that no longer serves and does not know it.
    connects_to_stale,
    /// An active node lost its role.
    roles_lost,
    partitions_both,
    partitions_to,
    partitions_from,
    /// A node was cut off together with a server that takes itself for the leader.
    isolations,
    /// Messages of streams came late, and nothing else did.
    deliveries_delayed,
    elections,
    majorities_lost,
    /// Streams were full for a while.
    fills,
    /// Appends that found no space.
    no_space,
    /// Leaders of streams came and went for a while.
    flaps,
    /// Appends that found no leader then.
    no_leader,
    /// Steps after which a journal that served had no space.
    full_journals,
    switchovers,
    switchovers_to_successor,
    /// Two operators at once.
    switchovers_doubled,
    wall_jumps,
    /// A local copy was read again from the beginning.
    copies_started_over,
    /// A copy did not fit to the stream.
    copies_refused,
    /// Machines on which a later process went on with a copy.
    copies_resumed,
    /// The stream was purged before a follower had read that far.
    purges_before_standby,
    /// Clients that were refused by a standby.
    refused_by_standby,
    /// Requests that were not answered in time.
    unknown,
    /// Appends that were stored after their node had given them up.
    late_appends,
    /// Those of them that the engine had refused when they were sent again.
    late_refused,
    /// Nodes that ended at their start because of another cluster's data.
    foreign_copies_refused,
    /// For a while the bucket named another cluster, or had a later format.
    records_replaced,
    /// Nodes that ended at their start because of the format.
    later_records_refused,
    /// Nodes that ended at their start because their data is not of the cluster that is named.
    other_records_refused,
    /// Standbys that found messages of another cluster.
    foreign_streams_refused,
    /// Nodes that served after foreign data was replaced.
    served_after_replacement,
    /// Nodes that were started with another configuration.
    reconfigured,
    /// Of those that served then.
    served_with_other_settings,
    /// Nodes that heard of another one with the same name, with other settings, of another version.
    names_told,
    configurations_told,
    versions_told,
    /// Nodes that were started with a program of a later format, an earlier one, the same one.
    upgrades,
    downgrades,
    patches,
    /// Nodes that met messages of a later format, and said so.
    later_messages_refused,
    /// Leases that were seen and could not be read.
    unreadable_leases,
    /// Nodes that met such messages, got the program for it, and served.
    served_after_upgrade,
    /// Takeovers of the small file, changes of it, changes that a later node prevented.
    files_taken,
    files_changed,
    files_fenced,
    /// Requests for it that were not answered.
    files_unknown,
    /// Active nodes that could not take it over in time, or not write what they begin with.
    roles_given_up,
    /// Active nodes that wrote something ahead of opening the journals.
    beginnings,
    /// The engine fell silent to a node that had just got the lease, the role, the small file, the
    /// journals, its first clients.
    silences_at_claim,
    silences_at_file,
    silences_at_beginning,
    silences_at_opening,
    silences_at_serving,
    unavailable,
    stale_reads,
    purges,
    /// Journals were asked to do without segments that keep the stream long.
    renewals,
}
