//! Nodes that run another version of the program.
//!
//! A later version is this program and a translation: what it appends has the next version of the
//! format of messages, and it reads both. A node of this version that meets such messages stays a
//! standby, says why, and loses nothing; when it runs the later program, it goes on.

use std::sync::Arc;

use cluster::{Answer, Body, Effect, LeaseAnswer, LeaseRequest, Request, Role, VERSION};

use super::Cluster;
use super::engine::{Question, Reply};
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::world::World;

/// The version of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Program {
    #[default]
    This,
    /// With the same format.
    Patched,
    /// With the next one.
    Later,
}

/// How a later program writes the lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum LeaseFormat {
    /// With one field more.
    #[default]
    Extended,
    /// So that this program cannot read it.
    Opaque,
}

/// What one node's process reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dialect {
    pub(crate) program: Program,
    pub(crate) lease: LeaseFormat,
}

impl Program {
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::This => "1.0",
            Self::Patched => "1.1",
            Self::Later => "2.0",
        }
    }

    /// Of messages.
    pub(crate) fn format(self) -> u8 {
        VERSION + u8::from(self == Self::Later)
    }
}

impl Dialect {
    /// What the process asks, as it reaches the engine.
    pub(crate) fn write(self, question: Question) -> Question {
        if self.program != Program::Later {
            return question;
        }
        match question {
            Question::Stream(Request::Append { after, body }) => {
                let body = with_version(&body, VERSION + 1);
                Question::Stream(Request::Append { after, body })
            }
            Question::Lease(LeaseRequest::Write { expected, value }) => {
                let value = match self.lease {
                    LeaseFormat::Extended => [EXTENDED, &value[1..]].concat(),
                    LeaseFormat::Opaque => [OPAQUE, &value].concat(),
                };
                Question::Lease(LeaseRequest::Write { expected, value })
            }
            other => other,
        }
    }

    /// What the process reads of what the engine has.
    pub(crate) fn read(self, body: Body, sabotage: Option<Sabotage>) -> Body {
        match self.program {
            Program::Later if is_later(&body) => with_version(&body, VERSION),
            _ if is_later(&body) && sabotage == Some(Sabotage::SkipLater) => void(&body),
            _ => body,
        }
    }

    /// The same for an answer.
    pub(crate) fn read_reply(self, reply: Reply, sabotage: Option<Sabotage>) -> Reply {
        match reply {
            Reply::Stream(Answer::Message(Some(body))) => {
                Reply::Stream(Answer::Message(Some(self.read(body, sabotage))))
            }
            Reply::Lease(LeaseAnswer::Found { revision, value }) if self.reads(&value) => {
                let value = value[OPAQUE.len()..].to_vec();
                Reply::Lease(LeaseAnswer::Found { revision, value })
            }
            other => other,
        }
    }

    fn reads(self, lease: &[u8]) -> bool {
        self.program == Program::Later && is_opaque(lease)
    }
}

/// A message of the later format.
pub(crate) fn is_later(body: &Body) -> bool {
    body[VERSION_AT] > VERSION
}

/// A lease that this program cannot read.
pub(crate) fn is_opaque(lease: &[u8]) -> bool {
    lease.starts_with(OPAQUE)
}

fn with_version(body: &Body, version: u8) -> Body {
    changed(body, |bytes| bytes[VERSION_AT] = version)
}

/// A planted bug: what it does not know counts for nobody.
fn void(body: &Body) -> Body {
    changed(body, |bytes| {
        bytes[VERSION_AT] = VERSION;
        bytes[EPOCH_AT..EPOCH_AT + size_of::<u64>()].fill(0);
    })
}

fn changed(body: &Body, change: impl FnOnce(&mut [u8])) -> Body {
    let mut bytes = body[..body.len() - size_of::<u32>()].to_vec();
    change(&mut bytes);
    let checksum = storage::checksum(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    Arc::from(bytes)
}

impl Cluster {
    /// What the process of a node writes and reads.
    pub(crate) fn dialect(&self, member: usize) -> Dialect {
        Dialect { program: self.members[member].program, lease: self.plan.lease }
    }

    /// Nothing that this version cannot read is there, or may still come.
    fn may_go_back(&self) -> bool {
        !self.engine.has_later()
    }

    /// Which program an operator starts next on a node.
    fn next_program(&mut self) -> Program {
        let is_needed = self.engine.has_later() && self.random.chance(60);
        let any = [Program::This, Program::Patched, Program::Later][self.random.below(3)];
        if is_needed { Program::Later } else { any }
    }
}

impl World {
    /// A node is started with another version of the program.
    pub(crate) fn change_program(&mut self, number: usize) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let (before, after) = (cluster.members[number].program, cluster.next_program());
        match (before, after) {
            _ if before == after => return Ok(()),
            (_, Program::Later) => cluster.toll.upgrades += 1,
            (Program::Later, _) => cluster.toll.downgrades += 1,
            _ => cluster.toll.patches += 1,
        }
        cluster.members[number].take_program(after);
        self.note(|| format!("node {number} gets the program {after:?}"));
        if self.random_order() { self.replace_process(number) } else { self.kill(number) }
    }

    fn random_order(&mut self) -> bool {
        self.cluster.as_mut().is_some_and(|cluster| cluster.random.chance(50))
    }

    fn replace_process(&mut self, number: usize) -> Result<(), String> {
        if self.cluster.as_ref().is_some_and(|it| it.members[number].agent.is_some()) {
            self.end_process(number, None)?;
            self.begin_process(number);
        }
        Ok(())
    }

    /// Before an effect of a node is carried out, and with what the streams hold now.
    pub(crate) fn watch_version(&mut self, number: usize, effect: &Effect) -> Result<(), String> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let is_behind = cluster.members[number].program != Program::Later;
        let is_active = matches!(effect, Effect::Role(Role::Active { .. }));
        if is_behind && is_active && cluster.engine.has_later_messages() {
            return Err(format!("node {number} is active, and cannot read all of its stream"));
        }
        Ok(())
    }

    /// Nodes that cannot read what is there have to say so.
    pub(crate) fn look_at_programs(&mut self) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        cluster.engine.broken_rule.take().map_or(Ok(()), Err)?;
        if cluster.engine.has_later_messages() {
            for member in cluster.members.iter_mut().filter(|it| it.program != Program::Later) {
                let mut streams = member.agent.iter().flat_map(|agent| agent.streams());
                let has_said = |fault: String| fault.contains("use a newer one");
                if streams.any(|it| it.fault.is_some_and(has_said)) && !member.is_too_old {
                    member.is_too_old = true;
                    cluster.toll.later_messages_refused += 1;
                }
            }
        }
        if cluster.is_calm() { self.settle_programs() } else { Ok(()) }
    }

    /// At the end all nodes get one program: the later one, if anything is there that only this one
    /// reads.
    fn settle_programs(&mut self) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let common = match cluster.may_go_back() {
            true => Program::Patched,
            false => Program::Later,
        };
        let is_settled = cluster.members.iter().all(|it| it.program == cluster.members[0].program);
        if is_settled && (common == Program::Patched || cluster.members[0].program == common) {
            return Ok(());
        }
        let has_other = |it: &usize| cluster.members[*it].program != common;
        let others: Vec<usize> = (0..cluster.members.len()).filter(has_other).collect();
        for number in others {
            let Some(cluster) = &mut self.cluster else { return Ok(()) };
            cluster.members[number].take_program(common);
            self.note(|| format!("node {number} gets the program {common:?}"));
            self.replace_process(number)?;
        }
        Ok(())
    }

    /// A lease as a node finds it.
    pub(crate) fn note_lease(&mut self, number: usize, reply: &Reply) {
        let Some(cluster) = &mut self.cluster else { return };
        if let Reply::Lease(LeaseAnswer::Found { value, .. }) = reply
            && is_opaque(value)
            && cluster.members[number].program != Program::Later
        {
            cluster.toll.unreadable_leases += 1;
        }
    }
}

/// Which form the lease of later programs has in a world.
pub(crate) fn any_lease(random: &mut Random) -> LeaseFormat {
    if random.chance(50) { LeaseFormat::Extended } else { LeaseFormat::Opaque }
}

/// Where they stand in a message (`crates/core/cluster/src/wire.rs`).
const VERSION_AT: usize = 2;
const EPOCH_AT: usize = 22;

const EXTENDED: &[u8] = b"{\"zone\":\"north\",";
const OPAQUE: &[u8] = b"lease 2\n";
