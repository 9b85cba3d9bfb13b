//! How long a scenario takes, as far as it says so itself.

use super::{Command, FOR_EVER_US, LifeCycle, Scenario, Stage, Step};

/// A length known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    pub us: u64,
    /// Some part takes as long as it takes: the broker, or the user, decides.
    pub is_open: bool,
}

impl Length {
    const NONE: Self = Self { us: 0, is_open: false };
    const OPEN: Self = Self { us: 0, is_open: true };

    fn of(us: u64) -> Self {
        Self { us, is_open: false }
    }

    fn then(self, other: Self) -> Self {
        Self { us: self.us.saturating_add(other.us), is_open: self.is_open || other.is_open }
    }

    fn beside(self, other: Self) -> Self {
        Self { us: self.us.max(other.us), is_open: self.is_open || other.is_open }
    }

    fn times(self, times: u64) -> Self {
        Self { us: self.us.saturating_mul(times), ..self }
    }

    pub fn secs(self) -> f64 {
        self.us as f64 / 1e6
    }
}

impl Scenario {
    /// All stages one after another. A search for a rate is open: how many steps its stage takes is
    /// not known.
    pub fn length(&self) -> Length {
        let stages = self.stages.iter().map(|stage| {
            if self.search.is_some() && stage.measured {
                return Length::OPEN;
            }
            let (before_us, after_us) = self.margins_of(stage);
            stage.length().then(Length::of(before_us + after_us))
        });
        stages.fold(Length::NONE, Length::then)
    }
}

impl Stage {
    /// Without warm-up and cool-down.
    fn length(&self) -> Length {
        let cycles = self.life_cycles.iter().map(LifeCycle::length);
        let needed = cycles.fold(Length::NONE, Length::beside);
        match self.duration_us {
            Some(us) if us >= FOR_EVER_US => Length::OPEN,
            // It ends when all is done, but a stage without anything to do is there to last.
            Some(us) if self.has_client_steps() && !needed.is_open => Length::of(us.min(needed.us)),
            Some(us) => Length::of(us),
            None => needed,
        }
    }
}

impl LifeCycle {
    fn length(&self) -> Length {
        length(&self.steps)
    }
}

fn length(steps: &[Step]) -> Length {
    steps.iter().map(|step| of_command(&step.command)).fold(Length::NONE, Length::then)
}

fn of_command(command: &Command) -> Length {
    match command {
        Command::Delay(delay) => Length::of(delay.duration_us),
        Command::Stall { duration_us } => Length::of(*duration_us),
        Command::Publish(publish) => match (publish.count, publish.pace.rate) {
            (Some(count), Some(rate)) => Length::of(rate.due_us(count)),
            _ => Length::OPEN,
        },
        Command::For(repeat) => {
            let round = length(&repeat.steps);
            match (repeat.times, repeat.rate) {
                (Some(times), Some(rate)) => {
                    round.times(times).beside(Length::of(rate.due_us(times)))
                }
                (Some(times), None) => round.times(times),
                (None, _) => round.then(Length::OPEN),
            }
        }
        // What the broker answers at once.
        Command::Connect(_)
        | Command::Disconnect(_)
        | Command::Subscribe(_)
        | Command::Unsubscribe(_)
        | Command::Receive(_)
        | Command::StartTimer(_)
        | Command::StopTimer(_)
        | Command::Fault(_) => Length::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Choice, parse};

    fn of(stages: &str) -> Length {
        let connect = stage("connect", "", "{ connect = {} }");
        let text = format!(
            "id = \"t\"\ntitle = \"t\"\n[clients.c]\ncount = 10\n\
             [topics.t]\nnames = \"t\"\ncount = 1\n{connect}{stages}"
        );
        let none = |name: &str| Err(format!("no file {name}"));
        let scenario = parse("t.toml", &text, &Choice::default(), &none).unwrap().scenario;
        scenario.length()
    }

    fn stage(name: &str, keys: &str, steps: &str) -> String {
        let steps = match steps {
            "" => String::new(),
            steps => format!("[[stage.do]]\nclients = \"c\"\nsteps = [{steps}]\n"),
        };
        format!("[[stage]]\nname = \"{name}\"\n{keys}\n{steps}")
    }

    #[test]
    fn stages_last_as_long_as_their_clients_need() {
        let counted = "{ publish = { to = \"t\", rate = \"10/s\", count = 50 } }";
        let endless = "{ publish = { to = \"t\", rate = \"10/s\" } }";
        let closed = "{ publish = { to = \"t\", count = 50 } }";
        assert_eq!(of(&stage("s", "", counted)), Length::of(5_000_000));
        assert_eq!(of(&stage("s", "duration = \"2s\"", counted)), Length::of(2_000_000));
        assert_eq!(of(&stage("s", "duration = \"20s\"", counted)), Length::of(5_000_000));
        assert_eq!(of(&stage("s", "duration = \"20s\"", endless)), Length::of(20_000_000));
        assert_eq!(of(&stage("s", "duration = \"3s\"", "")), Length::of(3_000_000));
        assert_eq!(of(&stage("s", "", closed)), Length::OPEN);
        let both = stage("hold", "duration = \"3s\"", "") + &stage("s", "", closed);
        assert_eq!(of(&both), Length { us: 3_000_000, is_open: true });
    }

    #[test]
    fn how_long_the_stage_of_a_search_takes_is_not_known() {
        let endless = "{ publish = { to = \"t\", rate = \"10/s\" } }";
        let searched = stage("s", "duration = \"20s\"\nmeasured = true", endless);
        let hold = stage("hold", "duration = \"3s\"", "");
        let search =
            "[search]\npercentile = 90\nlatency_max = \"1s\"\nrate_min = 1\nrate_max = 2\n";
        assert_eq!(of(&(hold + &searched + search)), Length { us: 3_000_000, is_open: true });
    }

    #[test]
    fn every_built_in_scenario_has_a_length() {
        for entry in crate::catalogue::entries() {
            let length = entry.load().unwrap().scenario.length();
            assert!(length.us > 0 || length.is_open, "{}", entry.id);
        }
    }
}
