//! How much a scenario asks for, computed before anything is started.

use super::{Command, Filters, GroupId, Hears, Listener, Publish, Scenario, TopicsId, Who};

/// Totals over the whole run (all agents). Rates are those of the busiest stage, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    pub clients: u64,
    pub publishers: u64,
    pub subscribers: u64,
    pub topics: u64,
    /// `None` where a closed loop decides.
    pub publishes_per_sec: Option<f64>,
    /// What services publish in answer to requests; not among the above. `None` where a closed
    /// loop decides, or nobody asks.
    pub answers_per_sec: Option<f64>,
    /// Answers included.
    pub deliveries_per_sec: Option<f64>,
    /// Average over the publishers; `None` if nothing is published.
    pub copies_per_message: Option<f64>,
    pub payload_bytes_max: u32,
}

impl Scenario {
    pub fn estimate(&self) -> Estimate {
        let mut estimate = Estimate {
            clients: self.groups.iter().map(|group| group.count).sum(),
            topics: self.topics.iter().map(|topics| topics.count).sum(),
            ..Estimate::default()
        };
        let mut publishers = Vec::new();
        let mut subscribers = Vec::new();
        self.each_command(&mut |_, cycle, command| {
            let Who::Clients(group) = cycle.who else { return };
            match command {
                Command::Publish(publish) => {
                    publishers.push(group);
                    estimate.payload_bytes_max =
                        estimate.payload_bytes_max.max(publish.payload.bytes_max());
                }
                Command::Subscribe(_) => subscribers.push(group),
                _ => {}
            }
        });
        estimate.publishers = self.clients_in(&mut publishers);
        estimate.subscribers = self.clients_in(&mut subscribers);
        self.estimate_rates(&mut estimate);
        estimate
    }

    fn clients_in(&self, groups: &mut Vec<GroupId>) -> u64 {
        groups.sort_unstable();
        groups.dedup();
        groups.iter().map(|group| self.group(*group).count).sum()
    }

    fn estimate_rates(&self, estimate: &mut Estimate) {
        let (mut copies_sum, mut weight_sum) = (0.0, 0.0);
        for stage in &self.stages {
            let (mut published, mut delivered, mut answered) = (Some(0.0), Some(0.0), Some(0.0));
            for cycle in &stage.life_cycles {
                let Who::Clients(group) = cycle.who else { continue };
                super::each_step(&cycle.steps, &mut |step| {
                    let Command::Publish(publish) = &step.command else { return };
                    let copies = self.copies_of(group, publish);
                    let clients = self.group(group).count as f64;
                    let rate = publish.pace.rate.map(|rate| rate.per_sec() * clients);
                    let weight = rate.unwrap_or(clients);
                    copies_sum += copies * weight;
                    weight_sum += weight;
                    let (answers, answer_copies) = self.answers_to(group, publish);
                    let add = |sum: Option<f64>, each: f64| Some(sum? + rate? * each);
                    published = add(published, 1.0);
                    answered = add(answered, answers);
                    delivered = add(delivered, copies + answer_copies);
                });
            }
            estimate.answers_per_sec = busier(estimate.answers_per_sec, answered);
            estimate.publishes_per_sec = busier(estimate.publishes_per_sec, published);
            estimate.deliveries_per_sec = busier(estimate.deliveries_per_sec, delivered);
        }
        if weight_sum > 0.0 {
            estimate.copies_per_message = Some(copies_sum / weight_sum);
        }
    }

    /// Copies per message of this publish command, averaged over a sample of its topics.
    pub fn copies_of(&self, group: GroupId, publish: &Publish) -> f64 {
        self.copies_among(&self.listeners(), group, publish)
    }

    /// Answers to one message of this publish command, and the copies that they make.
    fn answers_to(&self, group: GroupId, publish: &Publish) -> (f64, f64) {
        let Some(reply_to) = publish.reply_to else { return (0.0, 0.0) };
        let listeners = self.listeners();
        let services: Vec<Listener> = listeners.iter().filter(|l| l.responds).copied().collect();
        let answers = self.copies_among(&services, group, publish);
        let topics = self.topic_group(reply_to).count.max(1);
        let sample = self.group(group).count.min(SAMPLE_SLOW_MAX);
        let heard: u64 = sampled(self.group(group).count, sample)
            .map(|client| self.copies_at(&listeners, reply_to, client % topics))
            .sum();
        (answers, answers * heard as f64 / sample.max(1) as f64)
    }

    fn copies_among(&self, listeners: &[Listener], group: GroupId, publish: &Publish) -> f64 {
        let clients = self.group(group).count;
        let topics = self.topic_group(publish.topics).count;
        let sample =
            clients.min(if self.is_arithmetic(publish) { SAMPLE_MAX } else { SAMPLE_SLOW_MAX });
        let mut sum = 0.0;
        for (k, client) in sampled(clients, sample).enumerate() {
            let own = publish.assign.topics_of(client, clients, topics);
            if own.is_empty() {
                continue;
            }
            let topic = own.nth(k as u64 % own.len());
            sum += self.copies_at(listeners, publish.topics, topic) as f64;
        }
        if sample == 0 { 0.0 } else { sum / sample as f64 }
    }

    /// Copies of one message to this topic. Groups that share one subscription get one copy
    /// together.
    fn copies_at(&self, listeners: &[Listener], topics: TopicsId, topic: u64) -> u64 {
        let mut shared = Vec::new();
        let mut copies = 0;
        for listener in listeners {
            let hears = self.hears(listener, topics, topic);
            if matches!(hears, Hears::OneOf(_)) {
                if shared.contains(&listener.subscription) {
                    continue;
                }
                shared.push(listener.subscription);
            }
            copies += hears.copies();
        }
        copies
    }

    /// Whether all fan-out of these topics is a formula, without looking at names.
    fn is_arithmetic(&self, publish: &Publish) -> bool {
        self.subscriptions.iter().all(|subscription| match &subscription.filters {
            Filters::Topics { topics, .. } => *topics == publish.topics,
            Filters::Pattern { count, .. } => *count <= 64,
        })
    }
}

/// So many of the clients, spread evenly.
fn sampled(clients: u64, sample: u64) -> impl Iterator<Item = u64> {
    (0..sample).map(move |k| k * clients / sample)
}

fn busier(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        // A stage without publishing counts as 0, never as unknown; a closed loop wins as `None`
        // only if nothing open is known.
        (known, None) | (None, known) => known.filter(|rate| *rate > 0.0),
    }
}

const SAMPLE_MAX: u64 = 1_000;
/// Names have to be compared one by one: few samples are enough for an estimate.
const SAMPLE_SLOW_MAX: u64 = 20;
