//! Other definitions while the broker runs: all of them, or none.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use broker::streams::{ConsumerNumber, StreamNumber, StreamSet, StreamSettings};
use data::{Numbers, StreamFiles};
use routing::Definitions;
use routing::definitions::{Entry, RuleSpec};

use super::board::Defined;
use super::figures::Names;
use super::owner::Owner;
use super::sources::write_own;
use super::start::{
    Ground, InForce, consumer_of, definition_of, open_files, remove_others, settings_of_all,
};
use super::tenants::without_stale;
use super::{DefinitionsError, LoadedDefinitions, OperatorFile};

/// Why definitions are not in force. Those before are.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    /// They do not go with what runs.
    #[error(transparent)]
    Refused(#[from] anyhow::Error),
    #[error("cannot write to the data directory: {0:#}")]
    Unwritten(anyhow::Error),
}

impl Owner {
    /// The operator's file has changed.
    ///
    /// # Errors
    ///
    /// What cannot be used. Then the definitions before stay in force.
    pub(super) fn reload(&mut self, file: OperatorFile) -> Result<(), ApplyError> {
        let own = file.without_deleted(self.in_force.own.clone());
        let own = without_stale(own, &self.ground.namespaces);
        self.apply(Arc::new(file), own)
    }

    /// The definitions of the file and those of the API are in force from now on, as one whole.
    ///
    /// # Errors
    ///
    /// What cannot be used. Then those before stay in force.
    pub(super) fn apply(
        &mut self,
        file: Arc<OperatorFile>,
        own: Vec<Entry>,
    ) -> Result<(), ApplyError> {
        let loaded = file.whole(&own)?;
        let (used, numbers) = self.numbers_for(&loaded, &own)?;
        self.check_namespaces_of_streams(&loaded)?;
        self.check_streams_of_rules(&loaded, &numbers)?;
        let settings = self.settings_for(&loaded, &numbers)?;
        self.open_targets(&loaded)?;
        let new_files = self.store(&loaded, &used, &own).inspect_err(|_| {
            self.targets.close_unused();
        })?;
        // Nothing can fail from here on: all that could has been checked and opened.
        let (life, is_behind) = (self.in_force.set.life, Arc::clone(&self.in_force.set.is_behind));
        let set = Arc::new(StreamSet { life, streams: settings, is_behind });
        self.put_streams(&loaded, &numbers, new_files)?;
        self.put_rules(&loaded, &numbers)?;
        self.note_removed(&used, &numbers);
        let mut names = Names::new(&numbers, &loaded.definitions);
        let has_stream = |number: StreamNumber| self.files.0.contains_key(&number);
        names.keep(&self.board.names(), has_stream, |number| self.consumers.contains(&number));
        self.board.put_names(names);
        self.board.put_defined(Defined::new(&file, &own));
        self.in_force = InForce { file, own, loaded, numbers, set };
        self.follow_namespaces();
        self.remove_streams();
        self.hub.set_streams(Arc::clone(&self.in_force.set));
        Ok(())
    }

    /// The numbers of these definitions, with those of what is removed and without.
    fn numbers_for(
        &self,
        loaded: &LoadedDefinitions,
        own: &[Entry],
    ) -> anyhow::Result<(Numbers, Numbers)> {
        let Definitions { streams, rules, .. } = &loaded.definitions;
        let streams = || streams.iter().map(|stream| &*stream.name);
        let rules = || rules.iter().map(RuleSpec::name);
        let before = &self.in_force.numbers;
        let mut used = before.clone();
        used.set(
            streams().chain(before.streams().map(|(name, _)| name)),
            rules().chain(before.consumers().map(|(name, _)| name)),
        )?;
        if !own.is_empty() {
            used.note_definitions();
        }
        let mut numbers = used.clone();
        numbers.set(streams(), rules())?;
        // Another node must not take these for definitions that its file lacks.
        if self.ground.cluster.is_some() {
            used.note_leaving(&numbers);
        }
        Ok((used, numbers))
    }

    fn settings_for(
        &self,
        loaded: &LoadedDefinitions,
        numbers: &Numbers,
    ) -> anyhow::Result<Vec<StreamSettings>> {
        let mut settings = settings_of_all(&loaded.definitions, numbers, &self.ground)?;
        for own in &mut settings {
            let mut known = self.in_force.set.streams.iter();
            if let Some(known) = known.find(|known| known.number == own.number) {
                own.is_full = Arc::clone(&known.is_full);
            }
        }
        Ok(settings)
    }

    fn open_targets(&mut self, loaded: &LoadedDefinitions) -> anyhow::Result<()> {
        let opened = loaded.targets.iter().try_for_each(|own| self.targets.open(own).map(drop));
        opened.inspect_err(|_| self.targets.close_unused())
    }

    /// Writes what a start needs. A number is stored before it is in a journal, and until its
    /// definition is gone: without its number a stream begins anew.
    fn store(
        &self,
        loaded: &LoadedDefinitions,
        used: &Numbers,
        own: &[Entry],
    ) -> Result<BTreeMap<StreamNumber, Arc<StreamFiles>>, ApplyError> {
        let Ground { stamps, directory, .. } = &self.ground;
        let unwritten = |error: io::Error| ApplyError::Unwritten(error.into());
        if used.has_definitions() && !self.in_force.numbers.has_definitions() {
            // Once the numbers say that it is there, it must be.
            write_own(stamps, directory, &self.in_force.own).map_err(unwritten)?;
        }
        if *used != self.in_force.numbers {
            used.write(stamps, directory).map_err(unwritten)?;
        }
        let new_files = self.open_new_files(loaded, used)?;
        if own != self.in_force.own {
            write_own(stamps, directory, own).map_err(unwritten)?;
        }
        Ok(new_files)
    }

    /// A start forgets numbers without a definition: this may fail.
    fn note_removed(&self, used: &Numbers, numbers: &Numbers) {
        if used != numbers
            && let Err(error) = numbers.write(&self.ground.stamps, &self.ground.directory)
        {
            tracing::warn!(%error, "numbers of removed streams and rules not deleted");
        }
    }

    /// A stream keeps its namespace: its messages are of that one.
    fn check_namespaces_of_streams(&self, loaded: &LoadedDefinitions) -> anyhow::Result<()> {
        for stream in &loaded.definitions.streams {
            let before = self.in_force.loaded.definitions.stream(&stream.name);
            if before.is_some_and(|before| before.namespace != stream.namespace) {
                anyhow::bail!(
                    "stream '{}': namespace: a stream keeps its namespace; give the stream another \
                     name",
                    stream.name
                );
            }
        }
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
    ) -> Result<BTreeMap<StreamNumber, Arc<StreamFiles>>, ApplyError> {
        let mut new_files = BTreeMap::new();
        for spec in &loaded.definitions.streams {
            let Some(numbered) = numbers.stream(&spec.name) else { continue };
            let number = StreamNumber(numbered.number);
            if !self.files.0.contains_key(&number) {
                let opened = open_files(&self.ground, spec, numbered);
                let opened = opened.map_err(|error| match error.is::<io::Error>() {
                    true => ApplyError::Unwritten(error),
                    false => ApplyError::Refused(error),
                })?;
                new_files.insert(number, Arc::new(opened));
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
        for spec in from_the_last(&loaded.definitions.rules) {
            let Some(number) = numbers.consumer(spec.name()).map(ConsumerNumber) else { continue };
            let (definition, settings, topic) = consumer_of(loaded, numbers, spec, number)?;
            self.targets.assign(number, &settings, &topic)?;
            let before = &self.in_force.loaded.definitions.rules;
            let known = before.iter().find(|known| known.name() == spec.name());
            match self.consumers.contains(&number) {
                // What is in flight need not be compared with the same rule again.
                true if known == Some(spec) => {}
                true => self.hub.change_consumer(definition, now_ms)?,
                false => {
                    self.hub.add_consumer(definition, &Default::default())?;
                    self.consumers.push(number);
                }
            }
            let was_enabled = known.is_none_or(|it| it.rule.is_enabled());
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

/// The rules in an order in which dead letters never come back while some are changed and others
/// are not yet: first those whose dead letters no other rule reads.
fn from_the_last(rules: &[RuleSpec]) -> Vec<&RuleSpec> {
    let mut depths: BTreeMap<&str, usize> = BTreeMap::new();
    // As long as the longest way: there is no loop among them.
    for _ in 0..rules.len() {
        let mut has_changed = false;
        for rule in rules {
            let Some(to) = &rule.dead_letter else { continue };
            let depth = depths.get(&**to).map_or(1, |depth| depth + 1);
            let known = depths.entry(&rule.stream).or_default();
            has_changed |= *known < depth;
            *known = depth.max(*known);
        }
        if !has_changed {
            break;
        }
    }
    let mut ordered: Vec<&RuleSpec> = rules.iter().collect();
    ordered.sort_by_key(|rule| depths.get(&*rule.stream).copied().unwrap_or_default());
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_comes_behind_those_that_read_its_dead_letters() {
        let mut text = String::new();
        for name in ["a", "b", "c", "d"] {
            text += &format!("[[streams]]\nname = \"{name}\"\nfilters = [\"{name}\"]\n");
        }
        text += "[[targets]]\nname = \"t\"\ntype = \"http\"\nurl = \"https://a.b\"\n";
        for (stream, dead_letter) in [("a", "b"), ("b", "c"), ("d", "a"), ("c", "")] {
            text += &format!("[[rules]]\nname = \"of-{stream}\"\nstream = \"{stream}\"\n");
            text += "filter = \"a\"\ntarget = \"t\"\n";
            if !dead_letter.is_empty() {
                text += &format!("dead_letter = \"{dead_letter}\"\n");
            }
        }
        let found = routing::definitions::parse(&text).expect("it is valid");
        let names: Vec<&str> = from_the_last(&found.rules).iter().map(|own| own.name()).collect();
        assert_eq!(names, ["of-c", "of-b", "of-a", "of-d"]);
    }
}
