//! Other definitions while the broker runs: all of them, or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use broker::streams::{ConsumerNumber, StreamNumber, StreamSet};
use data::{Numbers, StreamFiles};
use routing::definitions::RuleSpec;

use super::LoadedDefinitions;
use super::figures::Names;
use super::owner::Owner;
use super::start::{
    InForce, consumer_of, definition_of, open_files, remove_others, settings_of_all,
};

impl Owner {
    /// These definitions are in force from now on.
    ///
    /// # Errors
    ///
    /// What cannot be used. Then those before stay in force.
    pub(super) fn apply(&mut self, loaded: LoadedDefinitions) -> anyhow::Result<()> {
        let mut numbers = self.in_force.numbers.clone();
        let definitions = &loaded.definitions;
        let streams = definitions.streams.iter().map(|stream| &*stream.name);
        numbers.set(streams, definitions.rules.iter().map(RuleSpec::name))?;
        self.check_streams_of_rules(&loaded, &numbers)?;
        let mut settings = settings_of_all(definitions, &numbers, &self.ground)?;
        for own in &mut settings {
            let mut known = self.in_force.set.streams.iter();
            if let Some(known) = known.find(|known| known.number == own.number) {
                own.is_full = Arc::clone(&known.is_full);
            }
        }
        if numbers != self.in_force.numbers {
            // A number is stored before it is in a journal.
            numbers
                .write(&self.ground.stamps, &self.ground.directory)
                .context("cannot store the numbers of streams")?;
        }
        let (life, is_behind) = (self.in_force.set.life, Arc::clone(&self.in_force.set.is_behind));
        let set = Arc::new(StreamSet { life, streams: settings, is_behind });
        let new_files = self.open_new_files(&loaded, &numbers)?;
        self.put_streams(&loaded, &numbers, new_files)?;
        self.put_rules(&loaded, &numbers)?;
        let mut names = Names::new(&numbers, &loaded.definitions);
        let has_stream = |number: StreamNumber| self.files.0.contains_key(&number);
        names.keep(&self.board.names(), has_stream, |number| self.consumers.contains(&number));
        self.board.put_names(names);
        self.in_force = InForce { loaded, numbers, set };
        self.follow_namespaces();
        self.remove_streams();
        self.hub.set_streams(Arc::clone(&self.in_force.set));
        Ok(())
    }

    /// A rule keeps its stream: its cursor is in that one.
    fn check_streams_of_rules(
        &self,
        loaded: &LoadedDefinitions,
        numbers: &Numbers,
    ) -> anyhow::Result<()> {
        let before = &self.in_force.loaded.definitions.rules;
        for rule in &loaded.definitions.rules {
            let known = before.iter().find(|known| known.name() == rule.name());
            let stream_of = |numbers: &Numbers, rule: &RuleSpec| {
                numbers.stream(&rule.stream).map(|numbered| numbered.number)
            };
            if let Some(known) = known
                && stream_of(&self.in_force.numbers, known) != stream_of(numbers, rule)
            {
                anyhow::bail!(
                    "rule '{}': stream: a rule keeps its stream; give the rule another name",
                    rule.name()
                );
            }
        }
        Ok(())
    }

    /// The directories of new streams. A disk that refuses one has changed nothing yet.
    fn open_new_files(
        &self,
        loaded: &LoadedDefinitions,
        numbers: &Numbers,
    ) -> anyhow::Result<BTreeMap<StreamNumber, Arc<StreamFiles>>> {
        let mut new_files = BTreeMap::new();
        for spec in &loaded.definitions.streams {
            let Some(numbered) = numbers.stream(&spec.name) else { continue };
            let number = StreamNumber(numbered.number);
            if !self.files.0.contains_key(&number) {
                new_files.insert(number, Arc::new(open_files(&self.ground, spec, numbered)?));
            }
        }
        Ok(new_files)
    }

    fn put_streams(
        &mut self,
        loaded: &LoadedDefinitions,
        numbers: &Numbers,
        mut new_files: BTreeMap<StreamNumber, Arc<StreamFiles>>,
    ) -> anyhow::Result<()> {
        for spec in &loaded.definitions.streams {
            let Some(numbered) = numbers.stream(&spec.name) else { continue };
            let number = StreamNumber(numbered.number);
            let definition = definition_of(spec, number, numbered.identity);
            match new_files.remove(&number) {
                None => self.hub.change_stream(definition)?,
                Some(files) => {
                    self.hub.add_stream(definition, Vec::new(), &Default::default())?;
                    self.files.0.insert(number, files);
                }
            }
        }
        Ok(())
    }

    fn put_rules(&mut self, loaded: &LoadedDefinitions, numbers: &Numbers) -> anyhow::Result<()> {
        let now_ms = self.clock.now_ms();
        for spec in &loaded.definitions.rules {
            let Some(number) = numbers.consumer(spec.name()).map(ConsumerNumber) else { continue };
            let (definition, settings, topic) = consumer_of(loaded, numbers, spec, number)?;
            self.targets.assign(number, &settings, &topic)?;
            match self.consumers.contains(&number) {
                true => self.hub.change_consumer(definition, now_ms)?,
                false => {
                    self.hub.add_consumer(definition, &Default::default())?;
                    self.consumers.push(number);
                }
            }
            let before = &self.in_force.loaded.definitions.rules;
            let was_enabled = before.iter().find(|it| it.name() == spec.name());
            let was_enabled = was_enabled.is_none_or(|it| it.rule.is_enabled());
            match (was_enabled, spec.rule.is_enabled()) {
                (true, false) => self.hub.pause(number, now_ms),
                (false, true) if !numbers.is_paused(number.0) => self.hub.resume(number, now_ms),
                _ => {}
            }
        }
        let is_defined =
            |number: &ConsumerNumber| numbers.consumers().any(|(_, own)| own == number.0);
        for number in self.consumers.iter().filter(|number| !is_defined(number)) {
            self.hub.remove_consumer(*number, now_ms);
        }
        self.targets.close_unused();
        Ok(())
    }

    /// Streams that are not defined any more go when their last consumer has ended.
    pub(super) fn remove_streams(&mut self) {
        let defined: Vec<u32> =
            self.in_force.numbers.streams().map(|(_, own)| own.number).collect();
        let gone = self.files.0.keys().filter(|number| !defined.contains(&number.0));
        for number in gone.copied().collect::<Vec<_>>() {
            if self.hub.remove_stream(number).is_ok() {
                self.files.0.remove(&number);
                self.removed.push(number);
                self.hub.set_streams(Arc::clone(&self.in_force.set));
            }
        }
    }

    /// No journal names a stream that is gone.
    pub(super) fn remove_files(&mut self) {
        for number in std::mem::take(&mut self.removed) {
            if let Some(cluster) = &self.ground.cluster {
                cluster.files.delete_stream(number.0);
            }
        }
        if let Err(error) = remove_others(&self.ground, &self.files) {
            tracing::warn!(error = format!("{error:#}"), "files of a removed stream remain");
        }
    }
}
