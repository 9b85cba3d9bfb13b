"""The broker as a client of its own listeners."""

import signal
from collections import Counter

import pytest

from broker import eventually
from manager import Frozen
from wire import Peer, publish

LISTENERS = """
[self_check]
interval_secs = 1
failures_max = 2
[[listeners]]
name = "plain"
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[[listeners]]
name = "unix"
url = "unix://{dir}/q.sock"
allow_anonymous = true
[[listeners]]
name = "tls"
url = "tls://127.0.0.1:0"
tls = { certificate = "{certs}/server.crt", key = "{certs}/server.key" }
[[listeners]]
name = "wss"
url = "wss://127.0.0.1:0/mqtt"
tls = { certificate = "{certs}/server.crt", key = "{certs}/server.key" }
[[listeners]]
name = "strict"
url = "tls://127.0.0.1:0"
[listeners.tls]
certificate = "{certs}/server.crt"
key = "{certs}/server.key"
client_ca = "{certs}/ca.crt"
client_auth = "require"
[[listeners]]
name = "proxied"
url = "tcp://127.0.0.1:0"
proxy_protocol = true
trusted_proxies = ["127.0.0.1/32"]
[auth]
password_file = "{dir}/passwords"
[access]
acl_file = "{dir}/acl"
"""

PLAIN = """
[self_check]
interval_secs = 1
failures_max = 2
[[listeners]]
name = "plain"
url = "tcp://127.0.0.1:0"
allow_anonymous = true
"""


def results(broker, result):
    """How many checks of each listener had this result. There is no metric before the first check."""
    found = Counter()
    for name, value in broker.metrics().items():
        if name.startswith("quelea_self_checks_total{") and f'result="{result}"' in name:
            found[name.split('listener="')[1].split('"')[0]] = value
    return found


def test_each_listener_is_checked_without_users_or_rules(start, certs, passwords):
    text = LISTENERS.replace("{certs}", str(certs))
    broker = start(text, {"passwords": passwords, "acl": "user anna\ntopic read nothing\n"})
    wanted = {"plain", "unix", "tls", "wss"}
    eventually(lambda: min(results(broker, "ok").values(), default=0) >= 1, "a check of each")
    assert results(broker, "ok").keys() == wanted
    metrics = broker.metrics()
    for name in wanted:
        assert metrics[f'quelea_self_check_success{{listener="{name}"}}'] == 1
        assert metrics[f'quelea_self_check_round_trip_seconds{{listener="{name}"}}'] > 0
    assert set(results(broker, "failed").values()) == {0}
    assert broker.get("/readyz")[0] == 200
    for name in ("strict", "proxied"):
        broker.wait_for_log(
            lambda event, name=name: "no self-check" in event["message"] and event["listener"] == name
        )
    # Nothing of it is told to operators as a client.
    assert not any("connected" in event["message"] for event in broker.log)


def test_nobody_sees_the_checks_or_passes_for_one(start):
    broker = start(PLAIN)
    with Peer(broker.port()) as watcher, Peer(broker.port()) as thief:
        watcher.accepted().subscribed("#")
        watcher.subscribed("$self-check-0")
        watcher.subscribed("+/#")
        # The name is free to all: without the secret it is a client like others.
        thief.accepted(client_id="$self-check-0", user="$self-check", password="0" * 64)
        thief.subscribed("$self-check-0")
        seen = results(broker, "ok")["plain"]
        eventually(lambda: results(broker, "ok")["plain"] >= seen + 2, "two more checks")
        thief.send(publish("$self-check-0", "mine"))
        assert thief.message()[1] == b"mine"
        assert watcher.message()[1] == b"mine"
        watcher.ping()
        thief.ping()
    assert results(broker, "failed")["plain"] == 0


def test_failures_in_a_row_end_readiness_until_a_check_succeeds(start):
    broker = start(PLAIN)
    eventually(lambda: results(broker, "ok")["plain"] >= 1, "a check")
    with Frozen(broker.process.pid, "worker-0"):
        status, text = eventually(
            lambda: (answer := broker.get("/readyz"))[0] == 503 and answer, "503"
        )
        assert "self-check" in text and "plain" in text
        assert broker.get("/healthz")[0] == 200
        assert results(broker, "failed")["plain"] >= 2, "one failure is not enough"
    eventually(lambda: broker.get("/readyz")[0] == 200, "ready again")
    broker.wait_for_log(lambda event: event["message"] == "self-check succeeds again")


def test_a_client_that_takes_all_permits_does_not_end_readiness(start):
    broker = start(PLAIN + "[limits]\nconnections_max = 2\n")
    eventually(lambda: results(broker, "ok")["plain"] >= 1, "a check")
    peers = []

    def are_taken():
        # A check may have a permit for a moment.
        peer = Peer(broker.port())
        if peer.connect()[1] == 0:
            peers.append(peer)
        else:
            peer.close()
        return len(peers) == 2

    try:
        eventually(are_taken, "both permits")
        seen = results(broker, "refused")["plain"]
        eventually(lambda: results(broker, "refused")["plain"] >= seen + 3, "refused checks")
        assert broker.get("/readyz")[0] == 200
        assert results(broker, "failed")["plain"] == 0
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("how", ["terminate", "reload"])
def test_a_stop_or_reload_during_checks_is_no_failure(start, how):
    broker = start(PLAIN)
    eventually(lambda: results(broker, "ok")["plain"] >= 1, "a check")
    if how == "reload":
        broker.process.send_signal(signal.SIGHUP)
        seen = results(broker, "ok")["plain"]
        eventually(lambda: results(broker, "ok")["plain"] > seen, "a check after it")
    broker.terminate()
    assert broker.wait() == 0
    assert not any(event["message"] == "self-check failed" for event in broker.log)


def test_without_the_section_nothing_is_checked(plain):
    assert not results(plain, "ok")
