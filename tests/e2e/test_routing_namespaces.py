"""Rules of namespaces: suspended with them, and deleted with them only if nothing waits to be sent."""

import pytest

from broker import Broker, eventually
from receiver import Receiver
from test_api import Api
from test_routing import publish_all
from test_routing_api import ctl, wait_for

CONFIG = """
[server]
shards = 2
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
namespace = "default"
namespace_from = ["username"]
[api]
listen = "http"
[routing]
file = "{dir}/rules.toml"
target_networks = ["127.0.0.0/8"]
[[namespaces]]
name = "red"
"""
RULES = """
[[streams]]
name = "red-cars"
namespace = "red"
filters = ["cars/#"]
[[streams]]
name = "cars"
filters = ["cars/#"]
[[targets]]
name = "hook"
type = "http"
url = "URL"
[[rules]]
name = "red"
stream = "red-cars"
filter = "#"
form = "raw"
target = "hook"
retry_secs = [1]
[[rules]]
name = "own"
stream = "cars"
filter = "#"
form = "raw"
target = "hook"
retry_secs = [1]
"""
OTHERS = RULES[RULES.index("[[streams]]\nname = \"cars\""):RULES.index("[[rules]]")] + RULES[
    RULES.index('[[rules]]\nname = "own"'):]


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture
def routing(receiver):
    brokers = []

    def start():
        brokers.append(Broker(CONFIG, files={"rules.toml": RULES.replace("URL", receiver.url)}))
        return brokers[-1], Api(brokers[-1])

    yield start
    for broker in brokers:
        broker.stop()


def of_red(config, keys):
    """The configuration with further keys of the namespace."""
    changed = config.replace('name = "red"\n', f'name = "red"\n{keys}\n')
    assert changed != config
    return changed


def publish(api, payload, namespace="red"):
    message = {"topic": "cars/7", "payload": payload, "qos": 1}
    return api("POST", "/publish", message, namespace=namespace)


def firsts(receiver):
    """A kill repeats what was sent and not committed."""
    return list(dict.fromkeys(receiver.payloads()))


def refuse_red(receiver):
    receiver.answers = lambda body: 503 if body.startswith(b"red") else 200


def test_rules_pause_with_their_namespace_and_keep_the_pause_of_an_operator(routing, receiver):
    broker, api = routing()
    refuse_red(receiver)
    publish(api, "red 1")
    wait_for(api, {"lag_messages": 1}, "red")
    ctl(broker, "ns", "suspend", "red")
    found = wait_for(api, {"state": "suspended"}, "red")
    assert (found["reason"], found["paused"]) == ("namespace suspended", False)
    assert "namespace suspended" in ctl(broker, "rules", "show", "red")
    receiver.answers = lambda body: 200
    publish_all(broker, ["own 1"])
    eventually(lambda: receiver.payloads() == ["own 1"], "another namespace goes on")
    # Also after a restart. An operator's resume does not end it.
    broker.restart("kill")
    api = Api(broker)
    api("POST", "/rule/resume", name="red")
    assert wait_for(api, {"lag_messages": 1}, "red")["state"] == "suspended"
    api("POST", "/rule/pause", name="red")
    ctl(broker, "ns", "resume", "red")
    found = wait_for(api, {"state": "paused"}, "red")
    assert (found["reason"], found["paused"]) == ("paused by an operator", True)
    publish_all(broker, ["own 2"])
    eventually(lambda: firsts(receiver) == ["own 1", "own 2"])
    api("POST", "/rule/resume", name="red")
    eventually(lambda: firsts(receiver) == ["own 1", "own 2", "red 1"])
    wait_for(api, {"state": "idle"}, "red")


def test_rules_pause_with_a_namespace_that_the_configuration_suspends(routing, receiver):
    broker, api = routing()
    whole = broker.config.read_text()
    broker.config.write_text(of_red(whole, 'state = "suspended"'))
    broker.reload()
    wait_for(api, {"state": "suspended"}, "red")
    broker.restart("terminate")
    api = Api(broker)
    assert wait_for(api, {"state": "suspended"}, "red")["reason"] == "namespace suspended"
    broker.config.write_text(whole)
    broker.reload()
    wait_for(api, {"state": "idle"}, "red")
    publish(api, "red 1")
    eventually(lambda: receiver.payloads() == ["red 1"])


def refuses_to_delete(broker):
    broker.wait_for_log(lambda event: event["message"].startswith("namespace not deleted")
                        and event.get("detail") == "red: 1")


@pytest.mark.parametrize("how", ["reload", "start"])
def test_a_namespace_with_pending_messages_is_deleted_by_force_only(routing, receiver, how):
    broker, api = routing()
    refuse_red(receiver)
    publish(api, "red 1")
    wait_for(api, {"lag_messages": 1}, "red")
    whole = broker.config.read_text()
    change = broker.reload if how == "reload" else lambda: broker.restart("terminate")
    broker.config.write_text(of_red(whole, 'state = "deleted"'))
    change()
    refuses_to_delete(broker)
    api = Api(broker)
    assert wait_for(api, {"state": "suspended"}, "red")["lag_messages"] == 1
    assert api("GET", "/namespace", name="red")["state"] == "suspended"
    # It is as it was, once it is to stay.
    broker.config.write_text(whole)
    broker.reload()
    receiver.answers = lambda body: 200
    eventually(lambda: receiver.payloads() == ["red 1"])
    refuse_red(receiver)
    publish(api, "red 2")
    wait_for(api, {"lag_messages": 1}, "red")
    broker.config.write_text(of_red(whole, 'state = "deleted"\ndiscard_pending = true'))
    change()
    broker.wait_for_log(lambda event: event["message"] == "namespace deleted")
    api = Api(broker)
    eventually(lambda: [own["name"] for own in api("GET", "/streams")["items"]] == ["cars"])
    assert [own["name"] for own in api("GET", "/rules")["items"]] == ["own"]
    # The next start finds a file with streams of a namespace that is gone.
    broker.restart("kill")
    publish_all(broker, ["own 1"])
    eventually(lambda: firsts(receiver) == ["red 1", "own 1"])


def test_a_namespace_is_deleted_once_its_streams_are_removed(routing, receiver):
    broker, api = routing()
    refuse_red(receiver)
    publish(api, "red 1")
    wait_for(api, {"lag_messages": 1}, "red")
    broker.config.write_text(of_red(broker.config.read_text(), 'state = "deleted"'))
    broker.reload()
    refuses_to_delete(broker)
    # One reload removes the streams and deletes the namespace.
    (broker.directory / "rules.toml").write_text(OTHERS.replace("URL", receiver.url))
    broker.reload()
    broker.wait_for_log(lambda event: event["message"] == "namespace deleted")
    eventually(lambda: [own["name"] for own in api("GET", "/rules")["items"]] == ["own"])
