use serde_json::json;

use super::*;
use crate::event::Event;
use crate::form::Form;
use crate::rule::{Destination, Verdict};
use crate::testing::text_record;

const TOPIC: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.EventGrid/namespaces/ns\
                     /topics/routed";

fn namespace() -> Value {
    json!({
        "name": "ns",
        "type": "Microsoft.EventGrid/namespaces",
        "location": "westeurope",
        "properties": {
            "isZoneRedundant": true,
            "topicSpacesConfiguration": {
                "state": "Enabled",
                "routeTopicResourceId": TOPIC,
                "routingIdentityInfo": {"type": "None"},
                "routingEnrichments": {
                    "static": [{"key": "plant", "value": "${P7}", "valueType": "String"}],
                    "dynamic": [{"key": "site", "value": "${client.attributes.site}"}],
                },
            },
        },
    })
}

fn subscription(name: &str, more: Value) -> Value {
    let mut properties = json!({
        "provisioningState": "Succeeded",
        "eventDeliverySchema": "CloudEventSchemaV1_0",
        "filtersConfiguration": {
            "includedEventTypes": ["MQTT.EventPublished"],
            "filters": [
                {"operatorType": "StringBeginsWith", "key": "subject", "values": ["plants/"]},
                {"operatorType": "NumberGreaterThan", "key": "data.celsius", "value": 80},
                {"operatorType": "StringIn", "key": "site", "values": ["berlin"]},
                {"operatorType": "IsNotNull", "key": "plant"},
            ],
        },
        "deliveryConfiguration": {
            "deliveryMode": "Push",
            "push": {
                "maxDeliveryCount": 10,
                "destination": {
                    "endpointType": "WebHook",
                    "properties": {"endpointUrl": "https://example.com/in?code=1"},
                },
            },
        },
    });
    if let (Some(own), Some(more)) = (properties.as_object_mut(), more.as_object()) {
        own.extend(more.clone());
    }
    json!({
        "id": format!("{}/eventSubscriptions/{name}", TOPIC.to_uppercase()),
        "name": name,
        "type": "Microsoft.EventGrid/namespaces/topics/eventSubscriptions",
        "properties": properties,
    })
}

fn imported(value: &Value) -> Imported {
    read(&value.to_string()).unwrap_or_else(|error| panic!("{error}"))
}

fn notes(imported: &Imported) -> Vec<String> {
    imported.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_namespace_and_its_subscription_become_a_rule() {
    let all = imported(&json!([namespace(), subscription("hot", json!({}))]));
    let [rule] = all.rules.as_slice() else { panic!("{all:?}") };
    assert_eq!((rule.name(), rule.filter(), rule.form()), ("hot", "#", Form::Structured));
    let target = rule.target().expect("it has one");
    let url = "https://example.com/in?code=1".to_owned();
    assert_eq!(target.destination, Destination::Http { url });
    let hot = text_record("plants/7", r#"{"celsius": 81}"#);
    let event = Event::new(&hot);
    assert_eq!(rule.verdict(&event), Verdict::Matches);
    let body = rule.output(&event).body.expect("a body");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!((&body["plant"], &body["site"]), (&json!("${P7}"), &json!("berlin")));
    let cold = text_record("plants/7", r#"{"celsius": 80}"#);
    assert!(matches!(rule.verdict(&Event::new(&cold)), Verdict::Condition(_)));
    assert_eq!(
        notes(&all),
        [
            "namespace 'ns': isZoneRedundant: has no counterpart in rules",
            "namespace 'ns': topicSpacesConfiguration.routingIdentityInfo: has no counterpart in rules",
            &format!(
                "namespace 'ns': topicSpacesConfiguration.routeTopicResourceId: '{TOPIC}' is used \
                 to find its event subscriptions"
            ),
            "event subscription 'hot': deliveryConfiguration.push.maxDeliveryCount: has no \
             counterpart in rules",
        ]
    );
}

#[test]
fn event_types_are_a_condition() {
    let types = json!({"filtersConfiguration": {"includedEventTypes": ["other.type"]}});
    let all = imported(&json!([namespace(), subscription("x", types)]));
    let record = text_record("t", "");
    let Verdict::Condition(condition) = all.rules[0].verdict(&Event::new(&record)) else {
        panic!("{all:?}")
    };
    assert_eq!(condition.to_string(), "type StringIn [other.type]");
}

#[test]
fn resources_are_found_in_lists_templates_and_output_of_the_cli() {
    let (own, sub) = (namespace(), subscription("hot", json!({})));
    let mut flat = sub["properties"].clone();
    let members = flat.as_object_mut().expect("an object");
    members.insert("name".into(), "hot".into());
    members.insert("id".into(), sub["id"].clone());
    let mut nested = own.clone();
    nested["resources"] = json!([sub]);
    for text in [
        json!({"value": [own, sub]}),
        json!({"$schema": "x", "resources": [own, sub]}),
        json!([{"value": [own]}, flat]),
        json!(nested),
    ] {
        let found = imported(&text);
        assert_eq!(found.rules.len(), 1, "{text}");
        assert_eq!(found.rules[0].name(), "hot");
    }
}

#[test]
fn each_part_without_a_counterpart_is_noted() {
    let queue = json!({"expirationTimeUtc": "2027-01-01T00:00:00Z", "deliveryConfiguration": {
        "deliveryMode": "Queue", "queue": {"receiveLockDurationInSeconds": 60}}});
    let hub = json!({"deliveryConfiguration": {"push": {"deliveryWithResourceIdentity": {
        "identity": {"type": "SystemAssigned"},
        "destination": {"endpointType": "EventHub", "properties": {
            "resourceId": "/subscriptions/s/namespaces/n/eventhubs/telemetry",
            "subscriptionKey": "x"}}}}}});
    let batch = json!({"eventDeliverySchema": "Other", "deliveryConfiguration": {"push": {
        "destination": {"endpointType": "WebHook", "endpointBaseUrl": "https://example.com/in",
            "maxEventsPerBatch": 10, "preferredBatchSizeInKilobytes": 64}}}});
    let function = json!({"deliveryConfiguration": {"push": {
        "destination": {"endpointType": "AzureFunction"}}}});
    let all = imported(&json!([
        namespace(),
        subscription("queue", queue),
        subscription("hub", hub),
        subscription("batch", batch),
        subscription("function", function),
        {"name": "c1", "type": "Microsoft.EventGrid/namespaces/clients", "properties": {}},
        {"name": "x", "type": "Microsoft.Storage/accounts", "properties": {}},
    ]));
    let targets: Vec<_> = all.rules.iter().map(|rule| (rule.name(), rule.target())).collect();
    assert!(matches!(
        targets[..],
        [("queue", None), ("hub", Some(_)), ("batch", Some(_)), ("function", None),]
    ));
    assert_eq!(all.rules[2].form(), Form::Batch);
    let found = notes(&all);
    for part in [
        "'queue': expirationTimeUtc",
        "'queue': deliveryConfiguration.queue: pull delivery has no counterpart",
        "'queue': deliveryConfiguration.queue.receiveLockDurationInSeconds",
        "'hub': deliveryConfiguration.push.deliveryWithResourceIdentity.identity",
        "destination.resourceId: the event hub becomes a Kafka topic",
        "destination.subscriptionKey: has no counterpart",
        "'batch': eventDeliverySchema: 'Other' has no counterpart",
        "destination.endpointBaseUrl: is exported without its query",
        "destination.maxEventsPerBatch: the number has no counterpart",
        "destination.preferredBatchSizeInKilobytes: has no counterpart",
        "'function': deliveryConfiguration.push.destination: AzureFunction has no counterpart",
        "clients 'c1': is not about routing",
        "accounts 'x': has no counterpart",
    ] {
        assert!(found.iter().any(|note| note.contains(part)), "{part}: {found:#?}");
    }
}

#[test]
fn only_subscriptions_of_the_routing_topic_are_rules() {
    let mut other = subscription("other", json!({}));
    other["id"] = format!("{TOPIC}2/eventSubscriptions/other").into();
    let all = imported(&json!([namespace(), other]));
    assert!(all.rules.is_empty());
    let found = notes(&all);
    assert!(
        found.iter().any(|note| note.contains("'other': does not become a rule: its topic")),
        "{found:?}"
    );
    let mut without = namespace();
    without["properties"]["topicSpacesConfiguration"]["routeTopicResourceId"] = Value::Null;
    let all = imported(&json!([without, subscription("a", json!({}))]));
    assert!(all.rules.is_empty(), "{all:?}");
    let all = imported(&subscription("alone", json!({"filtersConfiguration": null})));
    assert_eq!(all.rules.len(), 1);
    assert!(notes(&all)[0].contains("the namespace is missing"), "{:?}", all.notes);
}

#[test]
fn subscriptions_of_the_basic_tier_are_read() {
    let basic = json!({
        "name": "basic",
        "topic": TOPIC,
        "filter": {
            "subjectBeginsWith": "plants/", "subjectEndsWith": "", "isSubjectCaseSensitive": true,
            "includedEventTypes": null, "enableAdvancedFilteringOnArrays": null,
            "advancedFilters": [{"operatorType": "BoolEquals", "key": "data.on", "value": true,
                "values": null}],
        },
        "destination": {"endpointType": "WebHook", "endpointUrl": "https://example.com/in"},
        "retryPolicy": {"maxDeliveryAttempts": 30},
    });
    let all = imported(&json!([namespace(), basic]));
    let shown: Vec<_> = all.rules[0].conditions().iter().map(ToString::to_string).collect();
    assert_eq!(shown, [r#"subject StringBeginsWith ["plants/"]"#, "data.on BoolEquals true"]);
    let found = notes(&all);
    for part in ["isSubjectCaseSensitive", "enableAdvancedFilteringOnArrays", "retryPolicy"] {
        assert!(found.iter().any(|note| note.contains(part)), "{part}: {found:#?}");
    }
}

#[test]
fn what_is_wrong_refuses_the_text() {
    let with = |filter: Value| {
        let filters = json!({"filtersConfiguration": {"filters": [filter]}});
        json!([namespace(), subscription("x", filters)])
    };
    let mut enrichments = namespace();
    enrichments["properties"]["topicSpacesConfiguration"]["routingEnrichments"]["dynamic"] =
        json!([{"key": "id", "value": "${client.attributes.site}"}]);
    let mut typed = namespace();
    typed["properties"]["topicSpacesConfiguration"]["routingEnrichments"]["static"] =
        json!([{"key": "n", "value": "1", "valueType": "Integer"}]);
    for (text, part) in [
        (json!(1), "must be an object"),
        (json!([namespace(), namespace()]), "one namespace"),
        (json!([[[[[[[]]]]]]]), "inside each other"),
        (with(json!({"operatorType": "StringLike", "key": "id"})), "filters.0.operatorType"),
        (with(json!({"operatorType": "IsNotNull", "key": "Subject"})), "filters.0.key"),
        (with(json!({"operatorType": "StringIn", "key": "id", "values": [1]})), "filters.0.values"),
        (with(json!({"operatorType": "BoolEquals", "key": "data", "value": 1})), "filters.0.value"),
        (with(json!({"operatorType": "IsNotNull", "key": "id", "not": true})), "filters.0.not"),
        (with(json!([])), "list of objects"),
        (enrichments, "key 'id' is reserved"),
        (typed, "valueType: must be String"),
        (json!([subscription("a b", json!({}))]), "name: 'a b'"),
        (json!([subscription("a", json!({})), subscription("a", json!({}))]), "unique"),
        (json!([subscription("a", json!({"deliveryConfiguration": 1}))]), "must be an object"),
    ] {
        let error = read(&text.to_string()).expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(matches!(read("{"), Err(EventGridError::Json(_))));
    assert_eq!(read(&" ".repeat(FILE_BYTES_MAX + 1)), Err(EventGridError::TooLarge));
    let many: Vec<_> =
        (0..=RULES_MAX).map(|it| subscription(&format!("s{it}"), json!({}))).collect();
    assert_eq!(read(&Value::from(many).to_string()), Err(EventGridError::TooMany));
}

/// A destination with delivery properties, within a subscription.
fn mapped(kind: &str, mappings: Value) -> Value {
    let mut own = json!({"deliveryAttributeMappings": mappings});
    match kind {
        "WebHook" => own["endpointUrl"] = "https://example.com/in".into(),
        _ => own["resourceId"] = "/s/namespaces/n/eventhubs/telemetry".into(),
    }
    let destination = json!({"endpointType": kind, "properties": own});
    json!({
        "filtersConfiguration": null,
        "deliveryConfiguration": {"push": {"destination": destination}},
    })
}

fn fixed(name: &str, value: &str) -> Value {
    json!({"name": name, "type": "Static", "properties": {"value": value, "isSecret": false}})
}

fn dynamic(name: &str, field: &str) -> Value {
    json!({"name": name, "type": "Dynamic", "properties": {"sourceField": field}})
}

fn headers(rule: &Rule, payload: &'static str) -> Vec<(String, String)> {
    let record = text_record("plants/7", payload);
    let output = rule.output(&Event::new(&record));
    output.headers.into_iter().map(|header| (header.name, header.value)).collect()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
}

#[test]
fn delivery_properties_of_a_webhook_are_headers() {
    let secret = json!({"name": "Authorization", "type": "Static",
        "properties": {"value": "hunter2", "isSecret": true}});
    // As the CLI prints them.
    let flat = json!({"name": "x-flat", "type": "static", "value": "7", "isSecret": false,
        "sourceField": null});
    let all = [
        fixed("x-site", "berlin"),
        dynamic("x-celsius", "data.air.celsius"),
        dynamic("x-plant", "plant"),
        dynamic("x-topic", "subject"),
        secret,
        flat,
    ];
    let found =
        imported(&json!([namespace(), subscription("hook", mapped("WebHook", json!(all)))]));
    let form = pair("content-type", "application/cloudevents+json; charset=utf-8");
    assert_eq!(
        headers(&found.rules[0], r#"{"air": {"celsius": 81.5}}"#),
        [
            form,
            pair("x-site", "berlin"),
            pair("x-celsius", "81.5"),
            pair("x-plant", "${P7}"),
            pair("x-topic", "plants/7"),
            pair("x-flat", "7"),
        ]
    );
    assert!(!headers(&found.rules[0], "{}").iter().any(|(name, _)| name == "x-celsius"));
    let found = notes(&found);
    let note = "deliveryAttributeMappings.4: its value is a secret: put it into a file, and set the \
                header Authorization of the target";
    assert!(found.iter().any(|own| own.contains(note)), "{found:#?}");
    assert!(!found.iter().any(|own| own.contains("hunter2")), "{found:#?}");
}

#[test]
fn delivery_properties_of_an_event_hub_are_headers_and_the_key() {
    let key = |mapping: Value| {
        let mappings = json!([fixed("unit", "C"), dynamic("n", "data.n"), mapping]);
        let all =
            imported(&json!([namespace(), subscription("hub", mapped("EventHub", mappings))]));
        let [rule] = all.rules.as_slice() else { panic!("{all:?}") };
        let sent = headers(rule, r#"{"n": 1}"#);
        assert_eq!(sent[1..3], [pair("unit", "C"), pair("n", "1")]);
        let Some(Destination::Kafka { key, .. }) = rule.target().map(|it| &it.destination) else {
            panic!("{rule:?}")
        };
        let record = text_record("plants/7", "");
        (key.text().to_owned(), key.expand(&record))
    };
    assert_eq!(key(fixed("PartitionKey", "one")), ("one".into(), "one".into()));
    let site = "${client.attributes.site}".to_owned();
    assert_eq!(key(dynamic("PartitionKey", "site")), (site, "berlin".into()));
    let topic = "${mqtt.message.topicName}".to_owned();
    assert_eq!(key(fixed("other", "x")).0, topic);
}

#[test]
fn delivery_properties_that_a_rule_cannot_have_refuse_the_text() {
    let of = |kind: &str, mappings: Value| {
        json!([namespace(), subscription("x", mapped(kind, mappings))])
    };
    let hook = |mapping: Value| of("WebHook", json!([mapping]));
    let hub = |mapping: Value| of("EventHub", json!([mapping]));
    let typed = |kind: Value| json!({"name": "x", "type": kind, "properties": {"value": "1"}});
    let with = |more: Value| json!({"name": "x", "type": "Static", "properties": more});
    let mut batch = mapped("WebHook", json!([dynamic("x", "data.n")]));
    batch["deliveryConfiguration"]["push"]["destination"]["properties"]["maxEventsPerBatch"] =
        2.into();
    let many: Vec<_> = (0..11).map(|it| fixed(&format!("x-{it}"), "1")).collect();
    for (text, part) in [
        (of("WebHook", json!({})), "deliveryAttributeMappings: must be a list"),
        (hook(json!("x")), "deliveryAttributeMappings: must be a list of objects"),
        (of("WebHook", json!(many)), "deliveryAttributeMappings: must have at most 10"),
        (hook(fixed("", "1")), "deliveryAttributeMappings.0.name: ''"),
        (hook(fixed("a b", "1")), "0.name: 'a b': must be the name of an HTTP header"),
        (hook(fixed("Aeg-x", "1")), "must not begin with aeg-"),
        (hook(fixed("ce-id", "1")), "must not be content-type or begin with ce-"),
        (hub(fixed("ce_id", "1")), "must not be content-type or begin with ce_"),
        (hook(dynamic("Content-Type", "id")), "must not be content-type"),
        (of("WebHook", json!([fixed("x", "1"), fixed("X", "2")])), "1.name: 'X' is used twice"),
        (hook(typed("Computed".into())), "0.type: must be Static or Dynamic, got 'Computed'"),
        (hook(typed(Value::Null)), "0.type: must be Static or Dynamic, got ''"),
        (hook(with(json!({}))), "0.properties.value: missing"),
        (hook(with(json!({"value": 1}))), "0.properties.value: must be a text"),
        (hook(with(json!({"value": "a", "isSecret": "no"}))), "isSecret: must be true or false"),
        (hook(with(json!({"value": "a", "sourceField": "id"}))), "sourceField: must not be set"),
        (hook(with(json!({"value": "a", "unit": 1}))), "0.properties.unit: unknown member"),
        (hook(json!({"name": "x", "type": "Static", "value": "a", "unit": 1})), "0.unit: unknown"),
        (hook(fixed("x", "ä")), "0.value: must have at most 4096 printable ASCII"),
        (hook(dynamic("x", "$.data.n")), "0.sourceField"),
        (hook(dynamic("x", "")), "0.properties.sourceField: missing"),
        (json!([namespace(), subscription("x", batch)]), "must be Static with maxEventsPerBatch"),
        (hub(dynamic("PartitionKey", "data.n")), "its sourceField the key of an enrichment, got"),
        (hub(fixed("PartitionKey", "${x}")), "PartitionKey must not contain '${'"),
    ] {
        let error = read(&text.to_string()).expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    let hidden = with(json!({"value": "s", "isSecret": true}));
    assert!(notes(&imported(&hub(hidden))).iter().any(|note| note.contains("no secret headers")));
    let secret = json!({"name": "PartitionKey", "type": "Static",
        "properties": {"value": null, "isSecret": true}});
    let error = read(&hub(secret).to_string()).expect_err("a secret").to_string();
    assert!(error.contains("PartitionKey must not be a secret"), "{error}");
}
