"""`quelea rules`: the examples of its page, exit codes, and events that another library reads."""

import base64
import json
import re
import shlex
import subprocess

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from broker import QUELEA, ROOT

PAGE = ROOT / "docs/use/rules.md"
EXAMPLE = re.compile(r"```console\n\$ quelea (.*?)\n(.*?)```", re.DOTALL)
TIME = "2026-11-29T12:00:00Z"
STREAM = """[[streams]]
name = "all"
filters = ["#"]
"""
TARGETS = {
    "http": """[[targets]]
name = "t"
type = "http"
url = "https://example.com/in?code=secret"
""",
    "kafka": """[[targets]]
name = "t"
type = "kafka"
servers = ["kafka.example:9092"]
""",
}
ENRICHMENTS = """enrichments = { site = "${client.attributes.site}", pfi = "${mqtt.message.pfi}" }"""


def run(directory, *arguments):
    command = [QUELEA, "rules", *map(str, arguments)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


def rules_of_page():
    return re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]


def test_the_page_shows_what_the_commands_print(tmp_path):
    (tmp_path / "rules.toml").write_text(rules_of_page())
    examples = EXAMPLE.findall(PAGE.read_text())
    assert len(examples) == 3
    for command, expected in examples:
        done = run(tmp_path, *shlex.split(command)[1:])
        assert done.stdout == expected, command
        assert done.returncode == 0, command


def test_a_file_that_is_wrong_is_refused_with_its_lines(tmp_path):
    (tmp_path / "good.toml").write_text(rules_of_page())
    wrong = rules_of_page().replace("filter =", "filtered =").replace("StringIn", "StringIs")
    lines = wrong.splitlines()
    (tmp_path / "wrong.toml").write_text(wrong)
    done = run(tmp_path, "check", "good.toml", "wrong.toml")
    assert done.returncode == 2
    assert "good.toml: valid: streams 2, targets 2, rules 2, enabled 2" in done.stdout
    line = lines.index('filtered = "plants/+/motor"') + 1
    assert f"wrong.toml:{line}:1: rules.0.filtered: unknown key" in done.stderr
    line = lines.index('operator = "StringIs"') + 1
    expected = f"wrong.toml:{line}:12: rules.0.conditions.1.operator: unknown operator"
    assert expected in done.stderr
    assert run(tmp_path, "check", "nowhere.toml").returncode == 2
    done = run(tmp_path, "test", "--rules", "wrong.toml", "-t", "a")
    assert (done.returncode, done.stdout) == (2, "")


def test_files_of_secrets_are_read_by_check_only(tmp_path):
    login = 'sasl = { mechanism = "PLAIN", username = "u", password_file = "password" }\n'
    rule = '[[rules]]\nname = "r"\nfilter = "#"\ntarget = "t"\ntopic = "x"\n'
    (tmp_path / "rules.toml").write_text(STREAM + TARGETS["kafka"] + login + rule)
    done = run(tmp_path, "check", "rules.toml")
    assert done.returncode == 2
    assert "rules.toml:8:63: targets.0.sasl.password_file: cannot read password" in done.stderr
    assert run(tmp_path, "test", "--rules", "rules.toml", "-t", "a").returncode == 0
    (tmp_path / "password").write_text("hunter2\n")
    done = run(tmp_path, "check", "rules.toml")
    assert (done.returncode, done.stderr) == (0, "")


def test_headers_have_values_of_the_event(tmp_path):
    headers = 'headers = { x-site = { path = "site" }, x-n = { path = "data.n" }, fixed = "no" }\n'
    rule = '[[rules]]\nname = "r"\nfilter = "#"\ntarget = "t"\nform = "raw"\n'
    text = STREAM + TARGETS["http"] + headers + rule + ENRICHMENTS
    (tmp_path / "rules.toml").write_text(text)
    test = ("test", "--rules", "rules.toml", "--json", "-t", "a", "-a", "site=berlin", "--pfi", "1")
    done = run(tmp_path, *test, "-m", '{"n": 1.5}')
    found = json.loads(done.stdout)["rules"][0]["headers"]
    found = {header["name"]: header["value"] for header in found}
    assert found == {"x-site": "berlin", "x-n": "1.5"}, "those of the target are its own"


def test_the_exit_code_says_whether_a_rule_matches(tmp_path):
    (tmp_path / "rules.toml").write_text(rules_of_page())
    (tmp_path / "off.toml").write_text(rules_of_page().replace("filter =", "enabled = false\nfilter ="))
    test = ("test", "--rules", "rules.toml", "-t")
    assert run(tmp_path, *test, "plants/7").returncode == 0
    assert run(tmp_path, *test, "elsewhere").returncode == 1
    assert run(tmp_path, *test, "plants/+").returncode == 2
    done = run(tmp_path, "test", "--rules", "off.toml", "-t", "plants/7", "--json")
    assert done.returncode == 1
    off = json.loads(done.stdout)["rules"][1]
    assert off["matches"] and not off["enabled"]


def test_a_message_of_a_file_is_that_of_flags(tmp_path):
    (tmp_path / "rules.toml").write_text(rules_of_page())
    message = {
        "topic": "plants/7/motor", "payload_base64": base64.b64encode(b"\xff").decode(), "qos": 1,
        "retain": True, "client_id": "c7", "username": "anna", "attributes": {"site": ["a", 7]},
        "user_properties": [{"name": "unit", "value": "C"}], "payload_format": 0, "time": TIME,
        "content_type": "image/png", "message_expiry_secs": 60, "event_id": "7",
        "response_topic": "r", "correlation_data_base64": "eHk=", "namespace": "factory",
    }
    (tmp_path / "message.json").write_text(json.dumps(message))
    (tmp_path / "payload").write_bytes(b"\xff")
    test = ("test", "--rules", "rules.toml", "--json")
    by_file = run(tmp_path, *test, "--message-file", "message.json")
    by_flags = run(
        tmp_path, *test, "-t", "plants/7/motor", "-f", "payload", "-q", "1", "-r", "-i", "c7",
        "-u", "anna", "-a", "site=a", "-a", "site=7", "--property", "unit=C", "--pfi", "0",
        "--time", TIME, "--content-type", "image/png", "--expiry", "60", "--event-id", "7",
        "--response-topic", "r", "--correlation-data", "xy",
        "--namespace", "factory",
    )  # fmt: skip
    assert by_file.returncode == 0, by_file.stderr
    assert json.loads(by_file.stdout) == json.loads(by_flags.stdout)
    (tmp_path / "message.json").write_text('{"topic": "a", "payloads": "x"}')
    done = run(tmp_path, *test, "--message-file", "message.json")
    assert done.returncode == 2 and "payloads" in done.stderr


def test_resources_of_event_grid_are_rules(tmp_path):
    resources = [
        {"name": "ns", "type": "Microsoft.EventGrid/namespaces", "properties": {
            "topicSpacesConfiguration": {
                "routeTopicResourceId": "/x/topics/r", "routingEnrichments": {
                    "dynamic": [{"key": "site", "value": "${client.attributes.site}"}]}}}},
        {"name": "hot", "id": "/x/topics/r/eventSubscriptions/hot", "properties": {
            "filtersConfiguration": {"filters": [
                {"operatorType": "NumberGreaterThan", "key": "data.celsius", "value": 80}]},
            "deliveryConfiguration": {"deliveryMode": "Queue", "queue": {"maxDeliveryCount": 3}}}},
    ]  # fmt: skip
    (tmp_path / "exported.json").write_text(json.dumps(resources))
    done = run(tmp_path, "check", "--event-grid", "exported.json")
    assert done.returncode == 0
    assert "exported.json: valid: rules 1, enabled 1" in done.stdout
    assert "queue.maxDeliveryCount: has no counterpart" in done.stdout
    test = ("test", "--event-grid", "exported.json", "-t", "a", "--pfi", "1", "-m")
    assert run(tmp_path, *test, '{"celsius": 81}').returncode == 0
    done = run(tmp_path, *test, '{"celsius": 80}')
    assert done.returncode == 1
    assert "condition `data.celsius NumberGreaterThan 80` does not hold" in done.stdout


def test_delivery_properties_of_event_grid_are_headers(tmp_path):
    mappings = [
        {"name": "x-site", "type": "Static", "properties": {"value": "berlin", "isSecret": False}},
        {"name": "x-key", "type": "Static", "properties": {"value": "hunter2", "isSecret": True}},
        {"name": "x-celsius", "type": "Dynamic", "properties": {"sourceField": "data.celsius"}},
    ]  # fmt: skip

    def exported(kind, place):
        own = {**place, "deliveryAttributeMappings": mappings}
        destination = {"endpointType": kind, "properties": own}
        push = {"deliveryMode": "Push", "push": {"destination": destination}}
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps({"name": kind, "deliveryConfiguration": push}))
        return file.name

    def sent(file):
        message = ("-t", "a", "--pfi", "1", "-m", '{"celsius": 81.5}')
        done = run(tmp_path, "test", "--event-grid", file, "--json", *message)
        assert done.returncode == 0, done.stderr
        assert "hunter2" not in done.stdout + done.stderr
        [rule] = json.loads(done.stdout)["rules"]
        return {header["name"]: header["value"] for header in rule["headers"]}, rule

    hook = exported("WebHook", {"endpointUrl": "https://example.com/in"})
    own = {"x-site": "berlin", "x-celsius": "81.5"}
    assert own.items() <= sent(hook)[0].items()
    assert "x-key" not in sent(hook)[0]
    done = run(tmp_path, "check", "--event-grid", hook)
    assert "deliveryAttributeMappings.1: its value is a secret" in done.stdout
    mappings.append({"name": "PartitionKey", "type": "Static", "properties": {"value": "one"}})
    hub = exported("EventHub", {"resourceId": "/x/eventhubs/telemetry"})
    headers, rule = sent(hub)
    assert own.items() <= headers.items() and "PartitionKey" not in headers
    assert rule["key"] == "one", rule
    mappings[-1] = {"name": "PartitionKey", "type": "Dynamic", "properties": {"sourceField": "data.n"}}
    done = run(tmp_path, "check", "--event-grid", exported("EventHub", {"resourceId": "/x/t"}))
    assert done.returncode == 2
    assert "deliveryAttributeMappings.3: PartitionKey must be Static" in done.stderr


# Payloads with their declarations, and the data that an event has. An extension of the JSON format
# that the library does not know is not used.
MESSAGES = {
    "json": (["-m", '{"n": 1.5, "t": "ü"}', "--pfi", "1"], {"n": 1.5, "t": "ü"}),
    "text": (["-m", "on \"ü\"", "--pfi", "1"], "on \"ü\""),
    "binary": (["-f", "binary"], b"\xff\x00"),
    "typed": (["-m", "[1, 2]", "--content-type", "application/senml+json"], [1, 2]),
}


def sent(directory, target, form, *message):
    """What the target receives: headers and body."""
    rule = f'[[rules]]\nname = "r"\nfilter = "#"\nform = "{form}"\ntarget = "t"\n'
    rule += 'topic = "lake"\n' if target == "kafka" else ""
    (directory / "one.toml").write_text(STREAM + TARGETS[target] + rule + ENRICHMENTS)
    (directory / "binary").write_bytes(b"\xff\x00")
    done = run(
        directory, "test", "--rules", "one.toml", "--json", "-t", "plänts/7 a%", "--time", TIME,
        "-a", "site=Köln \"x\"", "--event-id", "id 1", "--expiry", "60", *message,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stdout
    answer = json.loads(done.stdout)["rules"][0]
    headers = {header["name"]: header["value"] for header in answer["headers"]}
    body = answer["body_base64"]
    return headers, None if body is None else base64.b64decode(body)


def check_event(event, pfi):
    """The attributes as the library reads them; extensions of HTTP headers are texts."""
    assert event.get_specversion() == "1.0"
    assert (event.get_id(), event.get_source()) == ("id 1", "default")
    assert (event.get_type(), event.get_subject()) == ("MQTT.EventPublished", "plänts/7 a%")
    assert event.get_time().isoformat() == "2026-11-29T12:00:00+00:00"
    assert event.get_extension("site") == 'Köln "x"'
    assert str(event.get_extension("pfi")) == pfi
    assert event.get_extension("expirytime") == "2026-11-29T12:01:00.000Z"


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("form", ["structured", "binary", "batch"])
def test_another_library_reads_events_of_http(tmp_path, name, form):
    message, data = MESSAGES[name]
    headers, body = sent(tmp_path, "http", form, *message)
    if form == "batch":
        assert headers == {"content-type": "application/cloudevents-batch+json; charset=utf-8"}
        headers = {"content-type": "application/cloudevents+json; charset=utf-8"}
        events = json.loads(body)
        assert len(events) == 1
        body = json.dumps(events[0]).encode()
    event = http.from_http(http.HTTPMessage(headers, body), JSONFormat())
    check_event(event, "1" if "--pfi" in message else "0")
    read = event.get_data()
    is_json = "json" in event.get_datacontenttype()
    if form == "binary" and not is_json and isinstance(read, bytes):
        read = read if isinstance(data, bytes) else read.decode()
    assert read == data


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("form", ["structured", "binary"])
def test_another_library_reads_events_of_kafka(tmp_path, name, form):
    message, data = MESSAGES[name]
    headers, body = sent(tmp_path, "kafka", form, *message)
    headers = {name: value.encode() for name, value in headers.items()}
    event = kafka.from_kafka(kafka.KafkaMessage(headers, None, body), JSONFormat())
    check_event(event, "1" if "--pfi" in message else "0")
    read = event.get_data()
    if form == "binary" and isinstance(read, bytes) and isinstance(data, str):
        read = read.decode()
    assert read == data


@pytest.mark.parametrize("form", ["structured", "binary"])
def test_events_of_another_library_stay_what_they_are(tmp_path, form):
    attributes = {"id": "7", "source": "/s", "type": "t", "subject": "s", "site": "forged"}
    event = CloudEvent(
        {**attributes, "specversion": "1.0", "datacontenttype": "application/json"}, {"n": 1}
    )
    whole = http.to_structured_event(event)
    properties = [f"--property={name}={value}" for name, value in attributes.items()]
    as_structured = ["-m", whole.body.decode(), "--content-type", "application/cloudevents+json"]
    as_binary = [
        *properties, "--property=specversion=1.0", "-m", '{"n": 1}',
        "--content-type", "application/json",
    ]  # fmt: skip
    for message in (as_structured, as_binary):
        headers, body = sent(tmp_path, "http", form, *message)
        read = http.from_http(http.HTTPMessage(headers, body), JSONFormat())
        assert (read.get_id(), read.get_source(), read.get_subject()) == ("7", "/s", "s")
        assert (read.get_data(), read.get_datacontenttype()) == ({"n": 1}, "application/json")
        assert read.get_extension("site") == 'Köln "x"'


SERVE = """
[server]
watch_files_secs = 1
[durability]
level = "memory"
[routing]
file = "{dir}/rules.toml"
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
"""
RULE = '[[rules]]\nname = "r"\nfilter = "#"\ntarget = "t"\n'


def test_a_broker_checks_its_file_and_uses_the_data_directory(start):
    broker = start(SERVE, files={"rules.toml": STREAM + TARGETS["http"] + RULE})
    assert (broker.data / "shard-000").is_dir(), "streams are stored, also at level memory"
    file = broker.directory / "rules.toml"
    file.write_text(STREAM.replace("filters", "filter"))
    refused = broker.wait_for_log(lambda event: "streams and rules have changed" in event["message"])
    assert "rules.toml:3:1: streams.0.filter: unknown key" in refused["error"]
    seen = len(broker.log)
    file.write_text(STREAM)
    again = broker.wait_for_log(lambda event: event["message"] == "streams and rules reloaded", seen)
    assert (again["streams"], again["rules"]) == (1, 0)
    file.write_text(STREAM + 'namespace = "red"\n')
    broker.reload("streams and rules not reloaded")
    refused = broker.wait_for_log(
        lambda event: "streams and rules not reloaded" in event["message"]
    )
    assert "streams.0.namespace: no namespace is named 'red'" in refused["error"]


def test_check_config_checks_the_file_of_rules(tmp_path):
    config = SERVE.replace("{dir}", str(tmp_path)).replace(":0", ":18831")
    (tmp_path / "quelea.toml").write_text(config)
    command = [QUELEA, "serve", "--check-config", "--http=off", f"--config={tmp_path}/quelea.toml"]

    def checked(text):
        (tmp_path / "rules.toml").write_text(text)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert checked(STREAM + TARGETS["http"] + RULE)[0] == 0
    code, output = checked(STREAM.replace('"#"', '"a/#"') + TARGETS["http"] + RULE.replace("#", "b"))
    assert code == 0 and "rule r: no filter of stream 'all' has a topic in common" in output
    code, output = checked(STREAM + RULE)
    assert code == 2 and "rules.toml:7:10: rules.0.target: no target is named 't'" in output
    code, output = checked(STREAM + 'namespace = "red"\n')
    assert code == 2 and "no namespace is named 'red'" in output
