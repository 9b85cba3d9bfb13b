//! The commands that are clients of a broker, or prepare its files. A build without the feature
//! `cli` has none of them.

use clap::Subcommand;

use cli::{ctl, flock, passwd, policy, publish, subscribe};

use super::rules;

#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Publish messages.
    Pub(publish::PubArgs),
    /// Subscribe and print messages.
    Sub(subscribe::SubArgs),
    /// Add, change or delete a user of a password file.
    Passwd(passwd::PasswdArgs),
    /// Inspect and change a running broker.
    Ctl(ctl::CtlArgs),
    /// Check a policy file, and explain what it decides.
    Policy(policy::PolicyArgs),
    /// Check files of rules, and show what they make of a message.
    Rules(rules::RulesArgs),
    /// Put load on a broker and measure: runs the program `quelea-flock`.
    Flock(flock::FlockArgs),
}

impl ClientCommand {
    /// The exit code.
    pub fn run(self) -> u8 {
        match self {
            Self::Pub(args) => publish::run(args),
            Self::Sub(args) => subscribe::run(args),
            Self::Passwd(args) => passwd::run(&args),
            Self::Ctl(args) => ctl::run(&args),
            Self::Policy(args) => policy::run(&args),
            Self::Rules(args) => rules::run(&args),
            Self::Flock(args) => flock::run(args),
        }
    }
}
