//! Results of runs against `docs/flock/results.schema.json`, which others read them by.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use std::process::Command;

use common::Mosquitto;
use flock_measure::{RESULTS_FORMAT, Results};
use serde_json::{Value, json};

/// Only what the schema uses of JSON Schema, 2020-12; anything else in it is an error here, too.
fn breaches(schema: &Value, value: &Value, place: &str, root: &Value, out: &mut Vec<String>) {
    for (keyword, rule) in schema.as_object().unwrap() {
        let mut wrong = |what: &str| out.push(format!("{place}: {what}: {value}"));
        match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" => {}
            "$ref" => {
                let path = rule.as_str().unwrap().strip_prefix('#').unwrap();
                let found = root.pointer(path).unwrap_or_else(|| panic!("no {path}"));
                breaches(found, value, place, root, out);
            }
            "type" if !is_of(rule, value) => wrong(&format!("is no {rule}")),
            "const" if rule != value => wrong(&format!("is not {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => wrong("is no known name"),
            "minimum" if value.as_f64().is_some_and(|n| n < rule.as_f64().unwrap()) => {
                wrong("is below the minimum");
            }
            "minItems" if value.as_array().is_some_and(|all| all.len() < len(rule)) => {
                wrong("has too few items");
            }
            "maxItems" if value.as_array().is_some_and(|all| all.len() > len(rule)) => {
                wrong("has too many items");
            }
            "type" | "const" | "enum" | "minimum" | "minItems" | "maxItems" => {}
            "required" => {
                for name in rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap()) {
                    if value.get(name).is_none() {
                        wrong(&format!("lacks {name}"));
                    }
                }
            }
            "properties" | "additionalProperties" => {}
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    breaches(rule, item, &format!("{place}/{n}"), root, out);
                }
            }
            "prefixItems" => {
                let items = value.as_array().into_iter().flatten();
                for (rule, item) in rule.as_array().unwrap().iter().zip(items) {
                    breaches(rule, item, place, root, out);
                }
            }
            "oneOf" => {
                let fits = |schema: &&Value| {
                    let mut found = Vec::new();
                    breaches(schema, value, place, root, &mut found);
                    found.is_empty()
                };
                let fitting = rule.as_array().unwrap().iter().filter(fits).count();
                if fitting != 1 {
                    wrong(&format!("fits {fitting} forms"));
                }
            }
            other => panic!("{place}: the schema uses `{other}`, which is not checked here"),
        }
    }
    let none = json!({});
    let known = schema.get("properties").unwrap_or(&none);
    for (name, item) in value.as_object().into_iter().flatten() {
        let place = format!("{place}/{name}");
        match (known.get(name), schema.get("additionalProperties")) {
            (Some(rule), _) => breaches(rule, item, &place, root, out),
            (None, Some(Value::Bool(false))) => out.push(format!("{place} is not in the schema")),
            (None, Some(rule @ Value::Object(_))) => breaches(rule, item, &place, root, out),
            (None, _) => {}
        }
    }
}

fn is_of(kinds: &Value, value: &Value) -> bool {
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("no type {other}"),
    };
    kinds.as_array().map_or_else(|| is(kinds), |all| all.iter().any(is))
}

fn len(rule: &Value) -> usize {
    rule.as_u64().unwrap() as usize
}

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../../docs/flock/results.schema.json")).unwrap()
}

fn all_breaches(value: &Value) -> Vec<String> {
    let (schema, mut out) = (schema(), Vec::new());
    breaches(&schema, value, "", &schema, &mut out);
    out
}

#[test]
fn results_of_runs_are_as_the_schema_says() {
    let broker = Mosquitto::start();
    let folder = std::env::temp_dir().join(format!("flock-schema-{}", std::process::id()));
    let run = |name: &str, more: &[&str]| {
        let out = folder.display().to_string();
        let mut words = vec!["run", name, "--broker", &broker.address, "--out", &out];
        words.extend(["--name", name, "--quiet"]);
        words.extend(more);
        let done = Command::new(env!("CARGO_BIN_EXE_flock")).args(&words).output().unwrap();
        let text = std::fs::read_to_string(folder.join(format!("{name}.json")))
            .unwrap_or_else(|error| panic!("{error}: {done:?}"));
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let pid = broker.pid().to_string();
    let plain = run("MB-B1", &["--scale", "0.01", "--ramp", "100ms", "--duration", "2s"]);
    let watched = run("X-6", &["--scale", "0.01", "--speed", "10", "--pid", &pid]);
    let mixed_options = ["--scale", "0.0002", "--ramp", "100ms", "--duration", "2s"];
    let mixed = run("EG-1", &[&mixed_options[..], &["--warm-up", "0s"]].concat());
    // Nobody routes anything.
    let unrouted = ["--set", "listen=127.0.0.1:0", "--set", "drain=500ms", "--warm-up", "0s"];
    let unrouted = run("EG-5-WEBHOOK", &[&mixed_options[..], &unrouted].concat());
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(all_breaches(&unrouted), [""; 0]);
    let sink = &unrouted["routing"]["sinks"][0];
    let count = &sink["by_qos"][0];
    assert_eq!(count["lost"], unrouted["totals"]["published"][1]);
    assert_eq!((&count["expected"], &count["received"]), (&count["lost"], &json!(0)));
    assert!((0.4..1.5).contains(&sink["waited_secs"].as_f64().unwrap()), "{sink}");
    assert_eq!(all_breaches(&plain), [""; 0]);
    assert_eq!(all_breaches(&mixed), [""; 0]);
    assert_eq!(all_breaches(&watched), [""; 0]);

    // What happened at each QoS adds up to the whole; a run at one QoS does not say it twice.
    assert_eq!(plain["qos_series"], json!([]));
    let total = |value: &Value| value.as_u64().unwrap();
    let levels = mixed["qos_series"].as_array().unwrap();
    assert_eq!(levels.iter().map(|level| total(&level["qos"])).collect::<Vec<_>>(), [0, 1]);
    for (qos, level) in levels.iter().enumerate() {
        let seconds = level["seconds"].as_array().unwrap();
        for count in ["published", "received"] {
            let sum: u64 = seconds.iter().map(|second| total(&second[count])).sum();
            assert_eq!(sum, total(&mixed["totals"][count][qos]), "{count} at QoS {qos}");
            assert!(sum > 0, "{count} at QoS {qos}");
        }
    }
    let totals = &mixed["totals"];
    assert_eq!(totals["pubacks_sent"], totals["received"][1]);
    assert_eq!(totals["pubacks_received"], totals["published"][1]);

    // The whole of the disclosure is there.
    assert_eq!(plain["scenario"]["overrides"]["duration"], "2s");
    let as_ran = plain["scenario"]["as_ran"].as_str().unwrap();
    assert!(as_ran.contains("stage publish: 2s, measured") && as_ran.contains(": 10, MQTT"));
    assert!(plain["broker"]["round_trip"]["median_us"].as_f64().unwrap() > 0.0);
    assert_eq!(plain["tool"]["profile"], "debug");
    // Nobody told of it.
    assert!(plain["broker"]["command"][0].as_str().unwrap().ends_with("mosquitto"));
    let source = plain["broker_load"]["source"].as_str().unwrap();
    assert_eq!(source, format!("pid {pid}, found by its socket"));
    let told = watched["broker"]["config"].as_str().unwrap();
    assert!(told.contains("allow_anonymous true"), "the file that its command names: {told}");
    assert!(watched["broker"]["command"][0].as_str().unwrap().ends_with("mosquitto"));
    let heat = watched["heat"].as_array().unwrap();
    assert!(heat.iter().any(|heat| heat["kind"] == "end_to_end"), "{heat:?}");
}

#[test]
fn the_schema_is_of_this_format_and_refuses_what_is_not_in_it() {
    let empty = Results { format: RESULTS_FORMAT, ..Results::default() };
    let good = serde_json::to_value(&empty).unwrap();
    assert_eq!(all_breaches(&good), [""; 0]);
    let change = |path: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(path).unwrap() = value;
        all_breaches(&bad).len()
    };
    assert_eq!(change("/format", json!(RESULTS_FORMAT - 1)), 1);
    assert_eq!(change("/run/duration_secs", json!("long")), 1);
    assert_eq!(change("/run/outcome", json!({"how": "failed"})), 1, "why is missing");
    assert_eq!(change("/totals/published", json!([0, 0])), 1);
    assert_eq!(change("/totals/bytes_in", json!(-1)), 1);
    assert_eq!(change("/heat", json!([{"kind": "somewhere", "seconds": []}])), 1);
    assert_eq!(change("/machine", json!({})), 10, "every field that is missing");
    let mut more = good;
    more["new"] = json!(1);
    assert_eq!(all_breaches(&more), ["/new is not in the schema"]);
}
