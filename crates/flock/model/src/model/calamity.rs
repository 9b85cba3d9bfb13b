//! What is done on purpose to a broker, a cluster or its clients.

use serde::{Deserialize, Serialize};

use super::{BrokerId, GroupId};

/// Something bad that is done on purpose. The process must be under the lab's control (its pid or
/// its command is given), and so must the links that are cut; connections of clients always are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL.
    Kill { who: Party },
    /// SIGTERM, and wait for the end.
    Stop { who: Party },
    /// SIGSTOP.
    Pause { who: Party },
    /// SIGCONT.
    Resume { who: Party },
    /// Start it with the command given, and wait until it accepts connections.
    Restart { who: Party },
    /// Nothing passes any more between a node and its engines, or an engine and all nodes.
    CutLinks { who: Party, directions: Directions },
    /// All passes again, and what waited first.
    Mend { who: Party },
    /// Close the sockets of this share (0 to 1) of a group's clients from our side, without a
    /// DISCONNECT.
    Cut { group: GroupId, share: f64 },
}

/// To whom a fault is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Party {
    Broker(BrokerId),
    /// A node of the cluster.
    Node(Which),
    /// Position among the engines, from 0.
    Engine(u32),
}

/// A node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    /// The one that accepts clients when the fault is done.
    Active,
    /// The first that runs and accepts none.
    Standby,
    /// The one that `active` or `standby` stood for last.
    Last,
    /// Position among the nodes, from 0.
    #[serde(untagged)]
    Number(u32),
}

/// As seen from the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directions {
    #[default]
    Both,
    Out,
    In,
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(at) => write!(f, "{at}"),
            Self::Active => f.write_str("active"),
            Self::Standby => f.write_str("standby"),
            Self::Last => f.write_str("last"),
        }
    }
}

impl Fault {
    /// The name of the step, as scenarios write it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill",
            Self::Stop { .. } => "stop",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Restart { .. } => "restart",
            Self::CutLinks { .. } | Self::Cut { .. } => "cut",
            Self::Mend { .. } => "mend",
        }
    }

    /// To whom, where it is not to clients.
    pub fn party(&self) -> Option<Party> {
        match *self {
            Self::Kill { who }
            | Self::Stop { who }
            | Self::Pause { who }
            | Self::Resume { who }
            | Self::Restart { who }
            | Self::CutLinks { who, .. }
            | Self::Mend { who } => Some(who),
            Self::Cut { .. } => None,
        }
    }
}
