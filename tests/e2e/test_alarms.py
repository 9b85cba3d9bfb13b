"""Alarms: what needs a person, by the API and `quelea ctl alarms`."""

import pytest

from broker import eventually
from test_api import CONFIG, USERS, Api, basic
from test_authorization_service import CONFIG as SERVED
from test_client_details import ctl
from wire import PUBACK, Peer, publish

BRIDGE = """
[[bridges]]
name = "cloud"
addresses = ["tcp://127.0.0.1:1"]
[[bridges.topics]]
filter = "up/#"
direction = "out"
"""

TLS = """
[[listeners]]
name = "secure"
url = "tls://127.0.0.1:0"
allow_anonymous = true
[listeners.tls]
certificate = "CERTS/server.crt"
key = "CERTS/server.key"
"""


def kinds(api):
    return [(row["kind"], row["subject"]) for row in api("GET", "/alarms")["items"]]


def test_there_is_no_alarm_without_a_cause(start):
    broker = start(CONFIG)
    assert kinds(Api(broker)) == []
    assert len(ctl(broker, "alarms").splitlines()) == 1


def test_a_bridge_a_certificate_and_a_paused_listener_are_alarms(start, certs):
    broker = start(CONFIG + TLS.replace("CERTS", str(certs)) + BRIDGE)
    api = Api(broker)
    # A bridge may be refused before the certificates are looked at.
    said = ("refused", "certificate_expires")
    eventually(lambda: all(word in str(api("GET", "/alarms")) for word in said))
    rows = api("GET", "/alarms")["items"]
    # The worst first.
    found = [(row["severity"], row["kind"], row["subject"]) for row in rows]
    assert found == [
        ("critical", "certificate_expires", "secure"), ("warning", "bridge_away", "cloud"),
    ]
    assert all(row["detail"] and row["fix"] for row in rows)
    assert "tcp://127.0.0.1:1" in rows[1]["detail"]
    api("POST", "/listeners/pause", status=204, name="secure")
    assert ("listener_paused", "secure") in kinds(api)
    text = ctl(broker, "alarms")
    assert "cloud" in text and "critical" in text and "listener_paused" in text
    api("POST", "/listeners/resume", status=204, name="secure")
    assert len(kinds(api)) == 2


def test_full_queues_and_limits_are_alarms(start):
    limits = "[limits]\nqueued_messages_max = 3\nretained_messages_max = 2\n"
    broker = start(CONFIG + limits)
    api = Api(broker)
    sleeper = Peer(broker.port()).accepted(client_id="s", properties=b"\x11\0\0\1\0")
    sleeper.subscribed("q/#", 1).close()
    eventually(lambda: not api("GET", "/client?client_id=s")["connected"])
    with Peer(broker.port()).accepted(client_id="p") as client:
        for number in range(1, 9):
            client.send(publish("q/a", b"x", 1, number))
            client.expect(PUBACK)
    assert ("limit", "limits.retained_messages_max") not in kinds(api)
    for topic in ("r/1", "r/2"):
        api("PUT", "/retained/message", {"payload": "x"}, topic=topic)
    assert ("limit", "limits.retained_messages_max") in kinds(api)
    eventually(lambda: ("queues", "") in kinds(api))


def test_a_service_that_does_not_answer_is_an_alarm(start, passwords):
    # Nothing listens on port 1.
    config = SERVED + 'url = "http://127.0.0.1:1/acl"\n'
    broker = start(config, {"passwords": passwords})
    api = Api(broker)
    with Peer(broker.port()).accepted(user="anna", password="secret") as client:
        assert kinds(api) == []
        for number in range(1, 5):
            client.send(publish("a", b"x", 1, number))
            client.expect(PUBACK)
        eventually(lambda: ("authorization_service", "") in kinds(api))


@pytest.mark.parametrize("name", ["vera", "token"])
def test_viewers_see_alarms(start, passwords, name):
    broker = start(USERS, files={"users": passwords})
    authorization = basic("anna", "secret") if name == "vera" else None
    assert Api(broker, authorization, nth=1)("GET", "/alarms")["items"] == []
