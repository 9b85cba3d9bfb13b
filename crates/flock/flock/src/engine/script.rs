//! The conductor's own life cycles of a stage, as a list of actions in time.

use flock_model::{Command, Fault, Stage, Step, Who};

/// Something that the run itself does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Fault(Fault),
    /// Figures are taken from here on, or no longer.
    Measure(bool),
    /// Nothing to do: the stage lasts at least until then.
    Wait,
}

/// What is to be done in a stage, as (microseconds after its start, action), in time's order. A
/// loop without an end is laid out up to the stage's duration.
pub(super) fn of_stage(stage: &Stage) -> Vec<(u64, Action)> {
    let end_us = stage.duration_us.unwrap_or(u64::MAX);
    let mut actions = Vec::new();
    for cycle in stage.life_cycles.iter().filter(|cycle| cycle.who == Who::Conductor) {
        let at_us = lay_out(&cycle.steps, 0, end_us, &mut actions);
        actions.push((at_us, Action::Wait));
    }
    actions.retain(|(at_us, _)| *at_us <= end_us);
    actions.sort_by_key(|(at_us, _)| *at_us);
    actions
}

/// The same in a stage that begins `before_us` earlier and ends `after_us` later than it says, of
/// which figures are taken in between. Nothing happens in the warm-up.
pub(super) fn with_margins(stage: &Stage, (before_us, after_us): (u64, u64)) -> Vec<(u64, Action)> {
    let mut actions: Vec<(u64, Action)> =
        of_stage(stage).into_iter().map(|(at_us, action)| (at_us + before_us, action)).collect();
    if before_us > 0 {
        actions.insert(0, (before_us, Action::Measure(true)));
    }
    if after_us > 0 {
        let until_us = before_us + stage.duration_us.unwrap_or(0);
        actions.push((until_us, Action::Measure(false)));
    }
    actions
}

fn lay_out(steps: &[Step], from_us: u64, end_us: u64, actions: &mut Vec<(u64, Action)>) -> u64 {
    let mut at_us = from_us;
    for step in steps {
        match &step.command {
            Command::Delay(delay) => at_us += delay.duration_us,
            Command::Fault(fault) => actions.push((at_us, Action::Fault(fault.clone()))),
            Command::For(repeat) => {
                let start_us = at_us;
                let mut round = 0;
                while repeat.times.is_none_or(|times| round < times) {
                    if let Some(rate) = repeat.rate {
                        at_us = at_us.max(start_us + rate.due_us(round));
                    }
                    if at_us > end_us || actions.len() >= ACTIONS_MAX {
                        break;
                    }
                    let before_us = at_us;
                    at_us = lay_out(&repeat.steps, at_us, end_us, actions);
                    round += 1;
                    if at_us == before_us && repeat.rate.is_none() && repeat.times.is_none() {
                        // It would never end.
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    at_us
}

/// Actions of one stage; a script longer than that is cut.
const ACTIONS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use flock_model::{BrokerId, Delay, LifeCycle, Party, Repeat, Spread};

    #[test]
    fn loops_are_laid_out_in_time() {
        let kill = Command::Fault(Fault::Kill { who: Party::Broker(BrokerId(0)) });
        let pause = Command::Delay(Delay { duration_us: 10, spread: Spread::None });
        let repeat =
            Repeat { times: None, rate: None, steps: vec![pause.into(), kill.clone().into()] };
        let stage = Stage {
            id: "s".into(),
            duration_us: Some(35),
            measured: false,
            expected_us: None,
            life_cycles: vec![LifeCycle {
                id: "c".into(),
                who: Who::Conductor,
                steps: vec![Command::For(repeat).into()],
            }],
        };
        let times: Vec<u64> = of_stage(&stage)
            .iter()
            .filter(|(_, action)| matches!(action, Action::Fault(_)))
            .map(|(at_us, _)| *at_us)
            .collect();
        assert_eq!(times, [10, 20, 30]);
        // They keep their places in the part that figures are taken of.
        let moved = with_margins(&stage, (100, 50));
        assert_eq!(moved.first(), Some(&(100, Action::Measure(true))));
        assert_eq!(moved.last(), Some(&(135, Action::Measure(false))));
        let faults = moved.iter().filter(|(_, action)| matches!(action, Action::Fault(_)));
        assert_eq!(faults.map(|(at_us, _)| *at_us).collect::<Vec<_>>(), [110, 120, 130]);
        assert_eq!(with_margins(&stage, (0, 0)), of_stage(&stage));
    }
}
