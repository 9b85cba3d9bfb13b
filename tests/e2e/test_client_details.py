"""What the API says of one client: connection, identity, traffic, will."""

import json
import subprocess

import pytest

from broker import PATIENCE_SECS, QUELEA, eventually
from test_api import CONFIG as PLAIN
from test_api import Api
from test_registry import POLICY, peer, registered
from test_registry import CONFIG as REGISTRY
from wire import PUBACK, Peer, publish


def ctl(broker, *words):
    command = [QUELEA, "ctl", "--data", str(broker.data), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECS, check=True
    ).stdout


def test_traffic_will_and_listener_of_a_client(start):
    broker = start(PLAIN.replace("url =", 'name = "devices"\nurl =', 1))
    api = Api(broker)
    idle = Peer(broker.port()).accepted(client_id="idle")
    client = Peer(broker.port()).accepted(
        client_id="busy", will=("wills/busy", b"gone", 1, True)
    ).subscribed("own/#")
    for number in range(1, 6):
        client.send(publish("other/a", b"x" * 100, 1, number))
        client.expect(PUBACK)
    busy = api("GET", "/client?client_id=busy")
    assert (busy["messages_received"], busy["messages_sent"]) == (5, 0)
    assert 5 * 100 < busy["bytes_received"] < 5 * 150 and busy["bytes_sent"] > 0
    api("POST", "/publish", {"topic": "own/a", "payload": "y" * 1000})
    assert client.message()[0] == "own/a"
    eventually(lambda: api("GET", "/client?client_id=busy")["messages_sent"] == 1)
    assert api("GET", "/client?client_id=busy")["bytes_sent"] > 1000
    assert busy["listener"] == "devices" and busy["connected_at"].startswith("20")
    details = busy["details"]
    assert details["will"] == {
        "topic": "wills/busy", "qos": 1, "retain": True, "payload_bytes": 4, "delay_secs": 0,
    }
    assert (details["tls_version"], details["provider"], details["attributes"]) == (None, None, {})
    kinds = [event["kind"] for event in details["events"]]
    assert set(kinds) == {"session.created", "session.connected"}
    assert details["events"][0]["data"]["client_id"] == "busy"
    row = next(row for row in api.all("/clients") if row["client_id"] == "idle")
    assert row["details"] is None
    assert (row["messages_received"], row["bytes_received"]) == (0, 0)
    idle.ping()
    shown = ctl(broker, "clients", "show", "busy")
    for text in ("listener", "devices", "messages_received", "wills/busy", "connected_at"):
        assert text in shown, shown


def test_identity_of_a_client_with_a_certificate(start, certs, passwords):
    own = registered("anna", "SubjectMatchesAuthenticationName")
    files = {"clients.json": json.dumps([own]), "policy": POLICY, "passwords": passwords}
    broker = start(REGISTRY.replace("CERTS", str(certs)), files)
    client = peer(broker, certs).accepted(client_id="c1", user="anna")
    details = Api(broker)("GET", "/client?client_id=c1")["details"]
    assert details["tls_version"] == "TLSv1.3" and details["tls_cipher"].startswith("TLS13_AES")
    assert details["provider"] == "clients"
    assert details["attributes"] == {"type": "pump", "floor": 3}
    assert details["groups"] == ["pumps"]
    client.ping()


@pytest.mark.parametrize("user", ["anna", None])
def test_the_only_provider_is_known_without_a_mark(start, passwords, user):
    config = PLAIN + '[auth]\npassword_file = "{dir}/passwords"\n'
    broker = start(config, {"passwords": passwords})
    with Peer(broker.port()).accepted(client_id="c", user=user, password=user and "secret"):
        details = Api(broker)("GET", "/client?client_id=c")["details"]
        assert details["provider"] == (user and "password_file")
