//! Whatever stands in a file of an operator: it is taken or refused with its place, and nothing
//! panics; what we write we read.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use config::keys::SECTIONS;
use config::{Machine, SourceFile, Sources, load};
use identity::auth::acl_file;
use identity::auth::passwords::{PasswordFile, check_username, with_user};
use identity::auth::scram::{Credentials, Exchange};
use policy::Permission;
use proptest::prelude::*;

const MACHINE: Machine = Machine { cores: 2, has_ipv6: true, ..Machine::UNKNOWN };

fn word() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] =
        &["user", "topic", "pattern", "read", "deny", "a/#", "%c", "#", "+", "", " ", "\t"];
    prop_oneof![prop::sample::select(KNOWN).prop_map(Into::into), "\\PC{0,6}"]
}

/// Text made mostly of what the format knows, so that it gets deep.
fn text() -> impl Strategy<Value = String> {
    let line = prop::collection::vec(word(), 0..5).prop_map(|words| words.join(" "));
    prop::collection::vec(line, 0..6).prop_map(|lines| lines.join("\n"))
}

fn toml() -> impl Strategy<Value = String> {
    let keys: Vec<(&str, &str)> = SECTIONS
        .iter()
        .flat_map(|section| section.keys.iter().map(move |key| (section.name, key.name)))
        .collect();
    let value = prop_oneof![
        Just("0".to_owned()),
        Just("true".to_owned()),
        Just("[\"a\"]".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        "[a-z0-9:/.]{0,8}".prop_map(|text| format!("\"{text}\"")),
        "\\PC{0,4}",
    ];
    let line =
        (prop::sample::select(keys), value, any::<bool>()).prop_map(|(key, value, is_list)| {
            let (section, name) = key;
            match section.strip_prefix("listeners") {
                Some(inner) if is_list => {
                    let inner = inner.trim_start_matches('.');
                    let dot = if inner.is_empty() { "" } else { "." };
                    format!(
                        "[[listeners]]\nurl = \"tls://127.0.0.1\"\n{inner}{dot}{name} = {value}"
                    )
                }
                _ => format!("[{section}]\n{name} = {value}"),
            }
        });
    prop::collection::vec(line, 0..4).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn an_access_file_is_taken_or_refused_with_its_line(text in text()) {
        match acl_file::compile(&text) {
            Ok(_) => prop_assert!(acl_file::parse(&text).is_ok()),
            Err((line, detail)) => {
                prop_assert!((1..=text.lines().count()).contains(&line));
                prop_assert!(!detail.is_empty());
            }
        }
    }

    #[test]
    fn a_rule_that_is_written_is_read(
        words in prop::sample::select(&[
            ("read", Permission::Read),
            ("write", Permission::Write),
            ("readwrite", Permission::ReadWrite),
            ("deny", Permission::Deny),
        ][..]),
        filter in "[a-z/]{1,12}",
    ) {
        let (word, permission) = words;
        let rules = acl_file::parse(&format!("user x\ntopic {word} {filter}")).unwrap();
        let (line, rule) = &rules[0];
        prop_assert_eq!((*line, rule.permission, rule.filter.as_str()), (2, permission, &*filter));
    }

    #[test]
    fn a_password_file_is_taken_or_refused_with_its_line(text in "(\\PC{0,12}[:$\n,]){0,12}") {
        if let Err((line, detail)) = PasswordFile::parse(&text) {
            prop_assert!((1..=text.lines().count()).contains(&line));
            prop_assert!(!detail.is_empty());
        }
    }

    #[test]
    fn replacing_a_user_touches_nobody_else(
        names in prop::collection::vec("[a-c]{1,2}", 0..8),
        name in "[a-c]{1,2}",
    ) {
        let text: String = names.iter().map(|name| format!("{name}:x\n")).collect();
        let changed = with_user(&text, &name, &[format!("{name}:y")]);
        let others = |text: &str| -> Vec<String> {
            let prefix = format!("{name}:");
            text.lines().filter(|line| !line.starts_with(&prefix)).map(Into::into).collect()
        };
        prop_assert_eq!(others(&text), others(&changed));
        prop_assert_eq!(changed.matches(&*format!("{name}:y\n")).count(), 1);
    }

    #[test]
    fn a_user_name_that_is_accepted_survives_the_file(name in "\\PC{1,12}") {
        prop_assume!(check_username(&name).is_ok());
        let hash = "$6$QUJD$".to_owned() + &"QUFB".repeat(21) + "QQ==";
        let text = with_user("# users\n", &name, &[format!("{name}:{hash}")]);
        prop_assert_eq!(PasswordFile::parse(&text).unwrap().user_count(), 1);
    }

    #[test]
    fn a_scram_exchange_survives_any_message(
        first in "(n,,)?\\PC{0,20}",
        last in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let start = Exchange::start(first.as_bytes(), "xyz", |name| {
            Credentials::decoy(&[0; 32], name)
        });
        if let Ok((exchange, _)) = start {
            prop_assert!(exchange.finish(&last).is_err(), "nobody knows this password");
        }
    }

    #[test]
    fn a_configuration_is_taken_or_refused_with_its_place(text in toml()) {
        let file = SourceFile { path: "q.toml".into(), text };
        let sources = Sources { file: Some(file), ..Sources::default() };
        if let Err(error) = load(&sources, &MACHINE) {
            prop_assert!(!error.problems.is_empty());
            for problem in &error.problems {
                prop_assert!(!problem.detail.is_empty());
            }
        }
    }
}
