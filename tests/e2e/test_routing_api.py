"""Streams and rules by the API, `quelea ctl` and metrics: what is shown, and what operators change."""

import json
import re
import subprocess
import time

import pytest

from broker import QUELEA, Broker, eventually
from receiver import Receiver
from test_api import Api, basic
from test_routing import ROUTING, closed_port, numbered, publish_all, rules
from wire import PUBLISH, Peer, connect, fresh, subscribe

MANAGED = ROUTING + """
[api]
listen = "http"
password_file = "{dir}/users"
operators = ["otto"]
"""

PUBLISHED = """
[events]
sys = true
[access]
acl_file = "{dir}/acl"
"""
ACL = "topic read $SYS/events/#\ntopic readwrite cars/#\n"

PARTS = ["not_matched", "skipped_condition", "skipped_expired", "delivered", "dead_lettered",
         "given_up", "dropped_retention", "dropped_damaged", "in_flight", "pending"]


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """vera views, otto operates."""
    path = tmp_path_factory.mktemp("users") / "users"
    for name in ("vera", "otto"):
        subprocess.run([QUELEA, "passwd", "-b", str(path), name, "secret"], check=True)
    return path.read_text()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture
def routing(users):
    """Starts brokers with rules, and gives them with their API."""
    brokers = []

    def start(text, config=MANAGED, **files):
        files = {"rules.toml": text, "users": users, **files}
        brokers.append(Broker(config, files=files))
        return brokers[-1], Api(brokers[-1])

    yield start
    for broker in brokers:
        broker.stop()


def rule_of(api, name="all"):
    """A rule, whose sum adds up."""
    found = api("GET", f"/rules/{name}")
    assert found["sum"]["stored"] == sum(found["sum"][part] for part in PARTS), found
    assert found["lag_messages"] == found["sum"]["in_flight"] + found["sum"]["pending"]
    return found


def wait_for(api, wanted, name="all"):
    """Waits until a rule has these parts of its sum, or these fields."""
    def has_all():
        rule = rule_of(api, name)
        return all({**rule, **rule["sum"]}[key] == value for key, value in wanted.items()) and rule
    return eventually(has_all, f"{wanted}")


def ctl(broker, *arguments, code=0):
    command = [QUELEA, "ctl", "--data", str(broker.data), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended
    return ended.stdout


def metric(broker, name, **labels):
    """The value of a metric with all of these labels."""
    for line in broker.get("/metrics")[1].splitlines():
        found = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line)
        if found and found[1] == name and dict(re.findall(r'(\w+)="([^"]*)"', found[2])) == labels:
            return float(found[3])
    raise AssertionError(f"{name} {labels}")


def test_streams_and_rules_are_listed(routing, receiver):
    more = '\n[[streams]]\nname = "dead"\n'
    text = rules(receiver.url, rule='stream = "cars"\ndead_letter = "dead"', more=more)
    broker, api = routing(text)
    publish_all(broker, numbered(0, 20))
    rule = wait_for(api, {"delivered": 20, "state": "idle"})
    assert rule["stream"] == "cars" and rule["dead_letter"] == "dead"
    assert (rule["target"], rule["target_kind"], rule["target_topic"]) == ("hook", "http", None)
    assert (rule["reason"], rule["until"], rule["last_error"]) == (None, None, None)
    assert rule["enabled"] and not rule["paused"] and rule["lag_messages"] == 0
    assert rule["counters"]["delivered"] == 20 and rule["counters"]["sent"] == 20
    assert [own["name"] for own in api.all("/streams", limit=1)] == ["cars", "dead"]
    stream = api("GET", "/stream", name="cars")
    assert stream["stored_messages"] == 20 and stream["rules"] == 1 and not stream["full"]
    assert stream["file_messages"] + stream["log_messages"] == 20
    assert stream["filters"] == ["cars/#"] and stream["when_full"] == "drop_oldest"
    assert api.all("/rules", namespace="default") == [rule_of(api)]
    api("GET", "/rules", namespace="red", status=404)
    problem = api("GET", "/rules/none", status=404)
    assert problem["fix"] == "GET /rules lists all"
    # A list of rows and fields of one.
    assert "all " in ctl(broker, "rules") and "idle" in ctl(broker, "rules", "list")
    assert json.loads(ctl(broker, "rules", "show", "all", "--json"))["sum"]["delivered"] == 20
    assert "Messages of this run:" in ctl(broker, "rules", "show", "all")
    assert "cars" in ctl(broker, "streams") and "stored_messages" in ctl(broker, "streams", "show", "cars")
    ctl(broker, "rules", "show", "none", code=5)
    ctl(broker, "rules", "pause", "none", code=5)


def test_metrics_have_the_figures_of_the_api(routing, receiver):
    receiver.answers = lambda body: 422 if body == b"3" else 200
    broker, api = routing(rules(receiver.url))
    publish_all(broker, numbered(0, 10))
    rule = wait_for(api, {"delivered": 9, "given_up": 1})
    for outcome in PARTS[:-2]:
        found = metric(broker, "quelea_rule_messages_total", rule="all", outcome=outcome)
        assert found == rule["counters"][outcome], outcome
    assert metric(broker, "quelea_rule_sent_messages_total", rule="all") == rule["counters"]["sent"]
    assert metric(broker, "quelea_rule_batches_total", rule="all") == rule["counters"]["batches"]
    failed = metric(broker, "quelea_rule_failed_batches_total", rule="all")
    assert failed == rule["counters"]["failed_batches"] > 0
    assert metric(broker, "quelea_rule_pending_messages", rule="all") == 0
    eventually(lambda: metric(broker, "quelea_rule_state", rule="all", state="idle") == 1)
    stored = metric(broker, "quelea_stream_stored_messages_total", stream="cars")
    assert stored == api("GET", "/streams/cars")["stored_messages"] == 10
    assert "422" in rule["last_error"]
    # Metrics name no topic.
    assert "cars/7" not in broker.get("/metrics")[1]


def test_a_paused_rule_delivers_nothing_until_it_is_resumed(routing, receiver):
    broker, api = routing(rules(receiver.url))
    publish_all(broker, ["before"])
    wait_for(api, {"delivered": 1})
    assert api("POST", "/rules/all/pause")["paused"]
    assert wait_for(api, {"state": "paused"})["reason"] == "paused by an operator"
    publish_all(broker, numbered(0, 10))
    wait_for(api, {"pending": 10})
    assert metric(broker, "quelea_rule_pending_messages", rule="all") == 10
    # It outlives a start, and a reload of the file.
    broker.restart("terminate")
    api = Api(broker)
    assert wait_for(api, {"state": "paused", "pending": 10})["paused"]
    broker.reload("streams and rules reloaded")
    publish_all(broker, ["later"])
    wait_for(api, {"state": "paused", "pending": 11})
    assert receiver.payloads() == ["before"]
    ctl(broker, "rules", "resume", "all")
    wait_for(api, {"delivered": 12, "pending": 0, "paused": False})
    assert receiver.payloads() == ["before", *numbered(0, 10), "later"]
    audit = [row for row in api("GET", "/audit")["items"] if row["call"].startswith("/rule/resume")]
    assert audit and audit[0]["status"] == 200


def test_a_rule_that_the_file_disables_cannot_be_resumed(routing, receiver):
    broker, api = routing(rules(receiver.url, rule="enabled = false"))
    rule = rule_of(api)
    assert (rule["enabled"], rule["paused"]) == (False, False)
    assert rule["reason"] == "disabled by its definition"
    assert "enabled = true" in api("POST", "/rule/resume", name="all", status=409)["fix"]


def test_a_seek_to_the_beginning_delivers_again(routing, receiver):
    broker, api = routing(rules(receiver.url))
    publish_all(broker, numbered(0, 10))
    first = wait_for(api, {"delivered": 10})
    assert api("POST", "/rules/all/seek", {"to": "beginning"})["run"] == first["run"] + 1
    again = wait_for(api, {"run": first["run"] + 1, "delivered": 10})
    assert again["sum"]["stored"] == 10 and again["counters"]["delivered"] == 20
    assert receiver.payloads() == numbered(0, 10) * 2
    # A position of an earlier answer.
    publish_all(broker, ["x", "y"])
    wait_for(api, {"delivered": 12})
    position = again["position"]
    ctl(broker, "rules", "seek", "all", "--to", position)
    rule = wait_for(api, {"run": first["run"] + 2, "delivered": 2})
    assert rule["sum"]["stored"] == 2
    assert receiver.payloads()[-2:] == ["x", "y"]
    # To the end: what is there is not delivered again.
    api("POST", "/rules/all/seek", {"to": "end"})
    wait_for(api, {"run": first["run"] + 3, "stored": 0, "state": "idle"})
    publish_all(broker, ["z"])
    wait_for(api, {"delivered": 1})
    assert receiver.payloads()[-1] == "z"
    problem = api("POST", "/rules/all/seek", {"to": "yesterday"}, status=400)
    assert problem["place"] == "body, to"


def test_a_seek_to_a_time_delivers_what_was_stored_since(routing, receiver):
    broker, api = routing(rules(receiver.url))
    publish_all(broker, ["old"])
    wait_for(api, {"delivered": 1})
    # Times of seeks are whole seconds.
    begun = int(time.time()) + 1
    eventually(lambda: time.time() >= begun)
    publish_all(broker, ["new"])
    wait_for(api, {"delivered": 2})
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun))
    api("POST", "/rules/all/seek", {"to": since})
    wait_for(api, {"stored": 1, "delivered": 1})
    assert receiver.payloads() == ["old", "new", "new"]


def test_a_target_that_is_away_is_shown_with_the_reason(routing):
    broker, api = routing(rules(f"http://127.0.0.1:{closed_port()}/in"))
    publish_all(broker, numbered(0, 3))
    rule = wait_for(api, {"state": "probation"})
    assert rule["reason"].startswith("the target is not available: "), rule
    assert rule["until"].endswith("Z") and rule["last_error"]
    eventually(lambda: metric(broker, "quelea_rule_state", rule="all", state="probation") == 1)
    assert wait_for(api, {"delivered": 0})["lag_messages"] == 3
    eventually(lambda: rule_of(api)["stalled_secs"] is not None)


def test_dead_letters_are_counted(routing, receiver):
    receiver.answers = lambda body: 422 if body == b"13" else 200
    more = '\n[[streams]]\nname = "dead"\n'
    text = rules(receiver.url, rule='stream = "cars"\ndead_letter = "dead"', more=more)
    broker, api = routing(text)
    publish_all(broker, numbered(0, 30))
    wait_for(api, {"delivered": 29, "dead_lettered": 1})
    eventually(lambda: api("GET", "/streams/dead")["stored_messages"] == 1)
    dead = metric(broker, "quelea_rule_messages_total", rule="all", outcome="dead_lettered")
    assert dead == 1


def test_roles_and_a_broker_without_routing(routing, receiver, users):
    broker, _ = routing(rules(receiver.url))
    viewer, operator = (Api(broker, basic(name, "secret")) for name in ("vera", "otto"))
    assert viewer("GET", "/rules")["items"] and viewer("GET", "/streams/cars")
    for what in ("pause", "resume"):
        viewer("POST", f"/rules/all/{what}", status=403)
        operator("POST", f"/rules/all/{what}")
    viewer("POST", "/rules/all/seek", {"to": "end"}, status=403)
    without = MANAGED.split("[routing]")[0] + "[api]" + MANAGED.split("[api]")[1]
    broker, api = routing("", without)
    assert api("GET", "/rules")["items"] == api("GET", "/streams")["items"] == []
    assert "routing.file" in api("GET", "/rule", name="all", status=404)["fix"]
    assert "routing.file" in api("POST", "/rule/pause", name="all", status=404)["fix"]
    assert "quelea_rule" not in broker.get("/metrics")[1]


def test_what_happens_to_a_rule_is_an_event(routing, receiver):
    receiver.answers = lambda body: 422 if body == b"bad" else 200
    broker, api = routing(rules(receiver.url), MANAGED + PUBLISHED, acl=ACL)
    reader = Peer(broker.port())
    reader.send(connect(fresh("reader")))
    reader.recv()
    reader.send(subscribe("$SYS/events/rule/#"))
    reader.recv()
    publish_all(broker, ["bad"])
    data = next_event(reader, "quelea.rule.message_not_delivered")
    assert (data["rule"], data["stream"], data["reason"]) == ("all", "cars", "refused")
    assert data["namespace"] == "default"
    assert data["dead_letter"] is None and "422" in data["detail"]
    api("POST", "/rules/all/pause")
    assert next_event(reader, "quelea.rule.state_changed")["state"] == "paused"


def next_event(peer, wanted):
    """The data of the next event of this type."""
    while True:
        kind, body = peer.recv()
        assert kind & 0xF0 == PUBLISH, (kind, body)
        event = json.loads(body[body.index(b"{"):])
        if event["type"] == wanted:
            return event["data"]
