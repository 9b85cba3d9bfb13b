use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::auth::policy_file;

fn clients(value: &Value) -> Result<Vec<Client>, String> {
    read(&value.to_string()).map(|found| found.clients)
}

fn client(more: Value) -> Value {
    let mut client = json!({
        "name": "c",
        "clientCertificateAuthentication": { "validationScheme": "SubjectMatchesAuthenticationName" },
    });
    for (name, value) in more.as_object().unwrap() {
        client[name] = value.clone();
    }
    client
}

#[test]
fn one_client_is_the_same_in_every_form() {
    let own = json!({
        "description": "a pump",
        "authenticationName": "Pump-1",
        "state": "Enabled",
        "clientCertificateAuthentication": {
            "validationScheme": "ThumbprintMatch",
            "allowedThumbprints": ["AB".repeat(32), "cd:".repeat(31) + "cd"],
        },
        "attributes": { "floor": 3, "sensors": ["motion", "humidity"], "type": "pump" },
        "provisioningState": "Succeeded",
    });
    let frame = json!({
        "id": "/subscriptions/x/providers/Microsoft.EventGrid/namespaces/ns/clients/p1",
        "name": "p1",
        "type": "Microsoft.EventGrid/namespaces/clients",
        "systemData": null,
    });
    let mut flat = frame.clone();
    for (name, value) in own.as_object().unwrap() {
        flat[name] = value.clone();
    }
    let mut nested = frame.clone();
    nested["properties"] = own.clone();
    let mut of_template = nested.clone();
    of_template["name"] = json!("ns/p1");
    of_template["apiVersion"] = json!("2023-12-15-preview");
    let namespace = json!({
        "type": "Microsoft.EventGrid/namespaces", "name": "ns", "location": "westeurope",
        "properties": { "topicSpacesConfiguration": { "state": "Enabled" } },
        "resources": [{ "type": "clients", "name": "p1", "properties": own.clone() }],
    });
    let expected = clients(&flat).unwrap();
    assert_eq!(expected.len(), 1);
    assert_eq!(expected[0].authentication_name, "Pump-1");
    let Some(Scheme::Thumbprints(thumbprints)) = &expected[0].scheme else { panic!() };
    assert_eq!(thumbprints[..], ["ab".repeat(32), "cd".repeat(32)]);
    for form in [
        nested.clone(),
        own,
        json!([flat]),
        json!({ "value": [nested.clone()], "nextLink": null }),
        json!({ "$schema": "x", "contentVersion": "1.0.0.0", "resources": [of_template] }),
        json!([namespace]),
    ] {
        assert_eq!(clients(&form).unwrap(), expected, "{form}");
    }
    let written = read(&read(&nested.to_string()).unwrap().registry()).unwrap();
    assert_eq!(written.clients, expected, "what is written is read");
}

#[test]
fn published_groups_spaces_and_bindings_become_a_policy() {
    let text = json!([
        { "name": "$all", "query": "true" },
        { "name": "ground", "query": "attributes.sensors IN ['motion', \"humidity\"] AND attributes.floor <= 5" },
        { "name": "two", "query": "authenticationName IN ['client1','client2']" },
        { "name": "vehicles", "topicTemplates":
            ["vehicles/${client.authenticationName|.x}/${client.attributes.vin}/#", "plain/+"] },
        { "name": "b1", "clientGroupName": "ground", "topicSpaceName": "vehicles", "permission": "Publisher" },
        { "name": "b2", "clientGroupName": "$all", "topicSpaceName": "vehicles", "permission": "Subscriber" },
        { "name": "ca", "type": "Microsoft.EventGrid/namespaces/caCertificates",
          "properties": { "encodedCertificate": "-----BEGIN" } },
    ]);
    let found = read(&text.to_string()).unwrap();
    assert_eq!(found.others, ["caCertificates 'ca'"]);
    let policy = policy_file::parse(&found.policy()).unwrap();
    let counts = (policy.groups.len(), policy.spaces.len(), policy.bindings.len());
    assert_eq!(counts, (2, 1, 2));
    assert_eq!(policy.bindings[1].group, None);
    assert_eq!(policy.spaces[0].templates[0].text, found.spaces[0].templates[0]);
}

#[test]
fn a_member_that_is_there_twice_is_refused() {
    let twice =
        r#"[{"name":"a","authenticationName":"a","authenticationName":"b","attributes":{}}]"#;
    assert!(read(twice).unwrap_err().contains("'authenticationName' is there twice"));
}

#[test]
fn what_is_not_understood_is_refused() {
    for (wrong, why) in [
        (json!(7), "must be an object"),
        (json!({ "name": "x" }), "has no type"),
        (
            json!({ "name": "x", "type": "Microsoft.EventHub/namespaces" , "attributes": {} }),
            "not one of",
        ),
        (json!({ "name": "x", "type": "Microsoft.Storage/storageAccounts" }), "not one of"),
        (json!({ "name": "[concat('ns/', 'c')]", "attributes": {} }), "expression of a template"),
        (json!({ "query": "a", "topicTemplates": [] }), "add its type"),
        (client(json!({ "state": "enabled" })), "Enabled or Disabled"),
        (client(json!({ "rights": "all" })), "unknown member 'rights'"),
        (client(json!({ "attributes": { "a b": "x" } })), "letters, digits"),
        (client(json!({ "attributes": { "a": 1.5 } })), "must be a text"),
        (client(json!({ "attributes": { "a": [1] } })), "must be a text"),
        (client(json!({ "attributes": { "a": null } })), "must be a text"),
        (client(json!({ "attributes": { "a": "x".repeat(5_000) } })), "at most 64 attributes"),
        (client(json!({ "attributes": [] })), "must be an object"),
        (client(json!({ "authenticationName": "" })), "must be a text"),
        (client(json!({ "authenticationName": "a\nb" })), "control"),
        (client(json!({ "authenticationName": "x".repeat(129) })), "1 to 128"),
        (client(json!({ "clientCertificateAuthentication": "Subject" })), "must be an object"),
        (json!([client(json!({ "name": "Aa" })), client(json!({ "name": "aA" }))]), "its case"),
        (json!({ "properties": { "attributes": {} }, "rights": 1, "name": "c" }), "'rights'"),
        (
            json!({ "clientGroupName": "g", "topicSpaceName": "s", "permission": "Both" }),
            "Publisher",
        ),
        (json!({ "clientGroupName": "g", "topicSpaceName": "s" }), "lacks its permission"),
        (json!({ "name": "s", "topicTemplates": "a" }), "list of texts"),
    ] {
        let error = read(&wrong.to_string()).map(|found| found.clients.len()).unwrap_err();
        assert!(error.contains(why), "{wrong}: {error}");
    }
    let scheme =
        |scheme: Value| clients(&client(json!({ "clientCertificateAuthentication": scheme })));
    for (wrong, why) in [
        (json!({ "validationScheme": "subject" }), "unknown validationScheme"),
        (json!({ "validationScheme": "ThumbprintMatch" }), "got 0"),
        (json!({ "validationScheme": "ThumbprintMatch", "allowedThumbprints": [] }), "got 0"),
        (
            json!({ "validationScheme": "ThumbprintMatch", "allowedThumbprints": ["a".repeat(40)] }),
            "SHA-1",
        ),
        (
            json!({ "validationScheme": "ThumbprintMatch", "allowedThumbprints": ["g".repeat(64)] }),
            "64 hex",
        ),
        (
            json!({ "validationScheme": "ThumbprintMatch", "allowedThumbprints": vec!["a".repeat(64); 3] }),
            "got 3",
        ),
        (json!({ "allowedThumbprints": ["a".repeat(64)] }), "need ThumbprintMatch"),
        (json!({ "thumbprint": "a" }), "unknown member"),
    ] {
        let error = scheme(wrong.clone()).map(|all| all.len()).unwrap_err();
        assert!(error.contains(why), "{wrong}: {error}");
    }
    assert_eq!(scheme(json!({})).unwrap()[0].scheme, Some(Scheme::Subject), "the default");
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(name in ".{0,12}", value in ".{0,40}") {
        let _ = read(&value);
        let object = json!({ &*name: value, "attributes": { &*name: value }, "name": value });
        let _ = read(&object.to_string());
        let _ = read(&json!({ "topicTemplates": [value], "name": name }).to_string())
            .map(|found| policy_file::parse(&found.policy()));
    }
}
