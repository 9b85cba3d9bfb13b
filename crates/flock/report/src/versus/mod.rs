//! Brokers side by side: the table that the command prints, and the page of each scenario.

mod page;
mod strip;
mod table;

pub use page::page;
pub(crate) use table::remarks;
pub use table::{all_have_a_valid_round, table};

use flock_measure::Results;

/// One broker and one scenario, once.
#[derive(Debug)]
pub struct Cell {
    pub broker: String,
    /// What a reader should know of the broker.
    pub note: String,
    pub scenario: String,
    pub round: u32,
    pub results: Result<Box<Results>, String>,
}

impl Cell {
    /// Of the files of the run, without their endings.
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.scenario, self.broker, self.round + 1)
    }
}

/// How the whole was done, as far as no run knows it.
#[derive(Clone, Debug, Default)]
pub struct Conduct {
    pub command: Vec<String>,
    pub rounds: u32,
    pub broker_cpus: String,
    pub load_cpus: String,
}
