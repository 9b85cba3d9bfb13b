//! Clients, groups and roles, and the rights that come of them.

use std::path::Path;

use super::*;

fn translated(text: &str) -> Translated {
    translate(text, "/etc/d.json")
}

/// Effect, action, topics and query of each rule.
fn rules(translated: &Translated) -> Vec<String> {
    let policy: toml::Table = translated.files[0].text.parse().unwrap();
    let none = Vec::new();
    let groups = policy.get("groups").and_then(|it| it.as_array()).unwrap_or(&none);
    let query = |name: &toml::Value| {
        let found = groups.iter().find(|group| group["name"] == *name).unwrap();
        found["query"].as_str().unwrap().to_owned()
    };
    let rules = policy.get("rules").and_then(|it| it.as_array()).unwrap_or(&none);
    let shown = |rule: &toml::Value| {
        let topics = rule["topics"].to_string().replace('"', "");
        let effect = rule["effect"].as_str().unwrap();
        let who = rule.get("group").map_or("all".into(), query);
        format!("{effect} {} {topics} {who}", rule["action"].as_str().unwrap())
    };
    rules.iter().map(shown).collect()
}

/// A file with these entries of one role that anna has, and these defaults.
fn with_role(acls: &[(&str, &str, i64, bool)], defaults: &str) -> Vec<String> {
    let acl = |(kind, topic, priority, allow): &(&str, &str, i64, bool)| {
        format!(
            "{{\"acltype\":\"{kind}\",\"topic\":\"{topic}\",\"priority\":{priority},\
             \"allow\":{allow}}}"
        )
    };
    let acls: Vec<String> = acls.iter().map(acl).collect();
    let text = format!(
        "{{\"clients\":[{{\"username\":\"anna\",\"roles\":[{{\"rolename\":\"r\"}}]}}],\
         \"roles\":[{{\"rolename\":\"r\",\"acls\":[{}]}}],\"defaultACLAccess\":{{{defaults}}}}}",
        acls.join(",")
    );
    let found = translated(&text);
    assert!(found.notes.iter().all(|note| note.fate != Fate::Error), "{:?}", found.notes);
    rules(&found)
}

const USUAL: &str = "\"publishClientSend\":false,\"publishClientReceive\":true,\
                     \"subscribe\":false,\"unsubscribe\":true";

#[test]
fn clients_have_their_hashes_and_disabled_ones_are_left_out() {
    let text = "{\"clients\": [\n{\"username\": \"anna\", \"password\": \"aGFzaA==\", \
                \"salt\": \"c2FsdA==\", \"iterations\": 101},\n{\"username\": \"bob\", \
                \"disabled\": true, \"password\": \"x\", \"salt\": \"y\", \"iterations\": 1},\n\
                {\"username\": \"carl\", \"textName\": \"\\u00e9\"}]}";
    let found = translated(text);
    assert_eq!(found.files[1].text, "anna:$7$101$c2FsdA==$aGFzaA==\n");
    assert!(found.files[1].is_secret && found.files[1].origins[0].line == 2);
    let fates: Vec<_> = found.notes.iter().map(|note| (note.place.line, note.fate)).collect();
    assert_eq!(fates, [(2, Fate::Carried), (3, Fate::Carried), (4, Fate::Differs)]);
    assert!(rules(&found).is_empty(), "what nothing grants is denied");
}

#[test]
fn entries_are_asked_by_their_priority() {
    let acls = [
        ("publishClientSend", "a/#", 0, true),
        ("publishClientSend", "a/x", 5, false),
        ("subscribePattern", "b/#", 0, true),
        ("subscribePattern", "b/x/#", 1, false),
        ("publishClientReceive", "#", 0, true),
        ("unsubscribePattern", "#", 0, true),
    ];
    let expected = [
        "deny publish [a/x] user in ['anna']",
        "allow publish [a/#] user in ['anna']",
        "deny subscribe [b/x/#] user in ['anna']",
        "allow subscribe [b/#] user in ['anna']",
    ];
    assert_eq!(with_role(&acls, USUAL), expected);
}

#[test]
fn a_message_needs_the_right_to_subscribe_and_the_right_to_receive() {
    let acls = [
        ("subscribePattern", "a/#", 0, true),
        ("subscribeLiteral", "b/+", 0, true),
        ("publishClientReceive", "a/secret", 2, false),
        ("publishClientReceive", "+/+", 1, true),
    ];
    // By default nothing is received.
    let defaults = USUAL.replace("Receive\":true", "Receive\":false");
    let expected = [
        "deny subscribe [a/secret] user in ['anna']",
        "allow subscribe [b/+, a/+] user in ['anna']",
    ];
    assert_eq!(with_role(&acls, &defaults), expected);
    // By default everything is.
    let expected = [
        "deny subscribe [a/secret] user in ['anna']",
        "allow subscribe [b/+, a/#] user in ['anna']",
    ];
    assert_eq!(with_role(&acls, USUAL), expected);
}

#[test]
fn a_denied_text_is_about_that_subscription_alone() {
    let acls = [("subscribeLiteral", "#", 0, false), ("subscribePattern", "#", 0, true)];
    let expected =
        ["deny subscribe [eq #] user in ['anna']", "allow subscribe [#] user in ['anna']"];
    assert_eq!(with_role(&acls, USUAL), expected);
}

#[test]
fn defaults_are_the_last_rules() {
    let open = "\"publishClientSend\":true,\"publishClientReceive\":true,\"subscribe\":true";
    let expected = [
        "deny publish [a] user in ['anna']",
        "allow publish [#, $SYS/#] all",
        "allow subscribe [#, $SYS/#] all",
    ];
    assert_eq!(with_role(&[("publishClientSend", "a", 0, false)], open), expected);
}

#[test]
fn placeholders_stand_for_the_client() {
    let acls = [("publishClientSend", "t/%c/%u", 0, true)];
    assert_eq!(
        with_role(&acls, USUAL),
        ["allow publish [t/${client.id}/${user}] user in ['anna']"]
    );
}

#[test]
fn groups_come_behind_the_roles_of_a_client_by_their_priority() {
    let role = |name: &str| {
        format!(
            "{{\"rolename\":\"{name}\",\"acls\":[{{\"acltype\":\"publishClientSend\",\
             \"topic\":\"{name}\",\"allow\":true}},{{\"acltype\":\"publishClientSend\",\
             \"topic\":\"no/{name}\",\"allow\":false}}]}}"
        )
    };
    let text = format!(
        "{{\"clients\":[{{\"username\":\"a\",\"roles\":[{{\"rolename\":\"own\"}}]}},\
         {{\"username\":\"b\",\"clientid\":\"b1\"}}],\
         \"roles\":[{},{},{}],\"groups\":[\
         {{\"groupname\":\"low\",\"roles\":[{{\"rolename\":\"l\"}}],\"clients\":[\
         {{\"username\":\"a\",\"priority\":1}},{{\"username\":\"b\"}}]}},\
         {{\"groupname\":\"high\",\"roles\":[{{\"rolename\":\"h\"}}],\"clients\":[\
         {{\"username\":\"a\",\"priority\":2}}]}}],\"anonymousGroup\":\"low\",\
         \"defaultACLAccess\":{{{USUAL}}}}}",
        role("own"),
        role("l"),
        role("h")
    );
    let found = translated(&text);
    let expected = [
        "deny all [#, $SYS/#] user = 'b' and client.id != 'b1'",
        "allow publish [own] user in ['a']",
        "deny publish [no/own] user in ['a']",
        "allow publish [h] user in ['a']",
        "deny publish [no/h] user in ['a']",
        "allow publish [l] user in ['a']",
        "deny publish [no/l] user in ['a']",
        "allow publish [l] user in ['b'] and client.id = 'b1'",
        "deny publish [no/l] user in ['b'] and client.id = 'b1'",
        "allow publish [l] not (user != '')",
        "deny publish [no/l] not (user != '')",
    ];
    assert_eq!(rules(&found), expected);
}

#[test]
fn what_is_not_understood_is_an_error_with_its_line() {
    for (text, line, what) in [
        ("{\"clients\": [", 1, "not closed"),
        ("{\n\"clints\": []}", 2, "unknown member"),
        (
            "{\"roles\": [{\"rolename\": \"a\", \"acls\": [\n{\"acltype\": \"x\", \"topic\": \"t\"}]}]}",
            2,
            "acltype",
        ),
        (
            "{\"clients\": [\n{\"username\": \"a\", \"roles\": [{\"rolename\": \"x\"}]}]}",
            2,
            "no role",
        ),
        ("{\"clients\": [{\"username\": \"a\"},\n{\"username\": \"a\"}]}", 2, "twice"),
        ("{\"clients\": [\n{\"username\": \"a:b\"}]}", 2, "password file"),
        ("{\"clients\": [\n{\"username\": \"a\", \"salt\": \"x\"}]}", 2, "needs password"),
        ("{\"anonymousGroup\": \"x\"}", 1, "no group"),
        ("{\"clients\": [],\n\"clients\": []}", 2, "twice"),
    ] {
        let found = translated(text);
        let is_it = |note: &&Note| note.fate == Fate::Error;
        let error = found.notes.iter().find(is_it).unwrap_or_else(|| panic!("{text}"));
        assert!(error.place.line == line && error.detail.contains(what), "{text}: {error}");
    }
}

#[test]
fn the_file_alone_is_a_configuration_for_this_machine() {
    let text = "{\"clients\": [], \"defaultACLAccess\": {}}";
    let imported = import(&Source { path: Path::new("/etc/d.json"), text, host: "h" });
    let table: toml::Table = imported.config().parse().unwrap();
    assert_eq!(table["auth"]["password_file"].as_str(), Some(PASSWORD_FILE));
    assert_eq!(table["access"]["policy_file"].as_str(), Some(POLICY_FILE));
    assert!(table.get("listeners").is_none());
    assert_eq!(imported.obstacles(false).count(), 0);
}
