"""Listeners by the names that the configuration has, and what SIGHUP says of other changes."""

from test_api import Api, ctl
from wire import Peer

CONFIG = """
[[listeners]]
name = "front"
url = "tcp://127.0.0.1:0"
allow_anonymous = true

[[listeners]]
url = "mqtt://127.0.0.1:0"
allow_anonymous = true

[api]
listen = "http"
"""


def is_open(broker, nth):
    with Peer(broker.port(nth=nth)) as peer:
        try:
            return peer.connect()[1] == 0
        except (AssertionError, OSError):
            return False


def test_a_listener_is_paused_by_its_name_or_url(start):
    broker = start(CONFIG)
    api = Api(broker)
    bound = [url for url in broker.urls if url.startswith("tcp://")]
    listed = [(row["name"], row["url"]) for row in api("GET", "/listeners")["items"]]
    assert listed == [("front", bound[0]), ("tcp://127.0.0.1:0", bound[1])]
    names = [("front", 0), (bound[0], 0), ("mqtt://127.0.0.1:0", 1), (bound[1], 1)]
    for name, nth in names + [("tcp://127.0.0.1:0", 1)]:
        ctl(broker, "listeners", "pause", name)
        assert not is_open(broker, nth) and is_open(broker, 1 - nth), name
        ctl(broker, "listeners", "resume", name)
        assert is_open(broker, nth), name
    problem = api("POST", "/listeners/pause", status=404, name="nowhere")
    assert "GET /listeners" in problem["fix"]
    head, *_ = ctl(broker, "listeners").splitlines()
    assert head.split()[:2] == ["LISTENER", "URL"]


def test_a_url_that_two_listeners_have_names_none_of_them(start):
    broker = start(CONFIG.replace('url = "mqtt:', 'name = "back"\nurl = "tcp:'))
    assert "2 listeners" in ctl(broker, "listeners", "pause", "tcp://127.0.0.1:0", code=1)
    assert is_open(broker, 0) and is_open(broker, 1)
    ctl(broker, "listeners", "pause", "back")
    assert is_open(broker, 0) and not is_open(broker, 1)


def test_sighup_names_changed_keys_that_need_a_restart(start):
    broker = start(CONFIG)
    before = broker.config.read_text()
    more = '[limits]\nqos_max = 1\n[[namespaces]]\nname = "red"\n[[listeners]]\nurl = "tcp://127.0.0.1:0"\n'
    broker.config.write_text(before.replace('name = "front"', 'name = "back"') + more)
    broker.reload()
    told = broker.wait_for_log(lambda event: "need a restart" in event["message"])
    assert told["level"] == "WARN" and told["count"] == 3
    assert told["keys"] == "listeners.0.name, listeners.2, limits.qos_max"
    broker.wait_for_log(lambda event: event["message"] == "namespaces applied")
    seen = len(broker.log)
    broker.config.write_text(before + '[[namespaces]]\nname = "blue"\n')
    broker.reload()
    broker.wait_for_log(lambda event: event["message"] == "namespaces applied", seen)
    assert not any("need a restart" in event["message"] for event in broker.log[seen:])
