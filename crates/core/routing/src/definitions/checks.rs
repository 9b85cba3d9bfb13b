//! What concerns several entries of a file.

use std::collections::{BTreeMap, BTreeSet};

use super::reader::Reader;
use super::{
    Definitions, HeaderSpec, HeaderValueSpec, Named, RuleSpec, SaslMechanism, SaslSpec, StreamSpec,
    TargetKind,
};

/// Dead letters stay in their namespace, and never come back to the rule that has made them.
pub(super) fn check_dead_letters(
    reader: &mut Reader<'_>,
    rules: &Named<'_, RuleSpec>,
    streams: &Named<'_, StreamSpec>,
    base: &Definitions,
) {
    let own = streams.entries.iter().map(|(_, stream)| stream);
    let by_name = own.chain(&base.streams).map(|stream| (&*stream.name, stream));
    let streams: BTreeMap<&str, &StreamSpec> = by_name.collect();
    let mut leads_to: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for rule in rules.entries.iter().map(|(_, rule)| rule).chain(&base.rules) {
        if let Some(letters) = &rule.dead_letter {
            leads_to.entry(&rule.stream).or_default().insert(letters);
        }
    }
    for (table, rule) in &rules.entries {
        let Some(letters) = &rule.dead_letter else { continue };
        let namespace = |name: &str| streams.get(name).map(|stream| &*stream.namespace);
        let (own, other) = (namespace(&rule.stream), namespace(letters));
        if let (Some(own), Some(other)) = (own, other)
            && own != other
        {
            let detail = format!(
                "stream '{letters}' is in namespace '{other}': must be a stream of namespace \
                 '{own}', as the rule's own is"
            );
            reader.problem_at(table, "dead_letter", detail);
        }
        if *letters == rule.stream {
            let detail = format!("must not be the rule's own stream '{letters}'");
            reader.problem_at(table, "dead_letter", detail);
        } else if reaches(&leads_to, letters, &rule.stream) {
            let detail = format!(
                "dead letters in stream '{letters}' come back to the rule's own stream '{}', as \
                 rules lead there: use another stream",
                rule.stream
            );
            reader.problem_at(table, "dead_letter", detail);
        }
    }
}

/// Is there a way from one stream to another?
fn reaches(leads_to: &BTreeMap<&str, BTreeSet<&str>>, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(stream) = open.pop() {
        for next in leads_to.get(stream).into_iter().flatten() {
            if *next == to {
                return true;
            }
            if seen.insert(*next) {
                open.push(next);
            }
        }
    }
    false
}

/// Passwords, tokens and secret headers without TLS. SCRAM sends no password.
fn shows_secrets(kind: &TargetKind) -> bool {
    match kind {
        TargetKind::Http(http) => {
            let is_secret = |it: &HeaderSpec| matches!(it.value, HeaderValueSpec::File(_));
            !http.url.starts_with("https://") && http.headers.iter().any(is_secret)
        }
        TargetKind::Kafka(kafka) => {
            let is_scram = |it: &SaslSpec| {
                matches!(
                    it,
                    SaslSpec::Password {
                        mechanism: SaslMechanism::ScramSha256 | SaslMechanism::ScramSha512,
                        ..
                    }
                )
            };
            kafka.tls.is_none() && kafka.sasl.as_ref().is_some_and(|it| !is_scram(it))
        }
    }
}

pub(super) fn notes(all: &Definitions) -> Vec<String> {
    let mut notes = Vec::new();
    let letters: BTreeSet<&str> =
        all.rules.iter().filter_map(|rule| rule.dead_letter.as_deref()).collect();
    for stream in &all.streams {
        if stream.filters.is_empty() && !letters.contains(&*stream.name) {
            let name = &stream.name;
            notes.push(format!(
                "stream {name}: it has no filters and no rule names it as dead_letter, so it \
                 stores nothing"
            ));
        }
    }
    for target in all.targets.iter().filter(|target| shows_secrets(&target.kind)) {
        let name = &target.name;
        notes.push(format!(
            "target {name}: its secret is sent in clear text: set tls = true for Kafka, or an URL \
             of https://"
        ));
    }
    let by_name = all.streams.iter().map(|stream| (&*stream.name, stream));
    let streams: BTreeMap<&str, &StreamSpec> = by_name.collect();
    for spec in &all.rules {
        let name = spec.name();
        notes.extend(spec.rule.notes().into_iter().map(|note| format!("rule {name}: {note}")));
        let Some(stream) = streams.get(&*spec.stream) else { continue };
        let filter = spec.rule.filter();
        let meets = |other: &String| topic::overlap(filter, other);
        // Dead letters have any topic.
        let is_of_letters = letters.contains(&*stream.name);
        if !is_of_letters && !stream.filters.iter().any(meets) {
            let stream = &stream.name;
            notes.push(format!(
                "rule {name}: no filter of stream '{stream}' has a topic in common with \
                 '{filter}', so the rule never matches"
            ));
        }
    }
    notes
}
