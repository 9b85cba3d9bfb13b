"""Clearing the retained messages that match a filter: API and `quelea ctl`."""

import os
import pty
import subprocess

import pytest

from broker import PATIENCE_SECS, QUELEA
from test_api import USERS, Api, audited, basic, ctl
from wire import PUBACK, Peer, publish

MANY = 250
NAMESPACES = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[[namespaces]]
name = "blue"
[api]
listen = "http"
"""


def retain(broker, topics):
    with Peer(broker.port()).accepted(client_id="retain") as peer:
        for topic in topics:
            peer.send(publish(topic, b"kept", 0, retain=True))
        peer.send(publish("end", b"", 1, 1))
        peer.expect(PUBACK)


def cleared(api, **query):
    """The sums of all pages, and how many there were."""
    sums, pages, cursor = {"matched": 0, "cleared": 0, "refused": 0}, 0, None
    while True:
        more = {"cursor": cursor} if cursor else {}
        page = api("DELETE", "/retained", **query, **more)
        sums = {name: sums[name] + page[name] for name in sums}
        pages, cursor = pages + 1, page["cursor"]
        if cursor is None:
            return sums, pages


@pytest.mark.parametrize("level", ["memory", "fsync"])
def test_the_messages_of_a_filter_are_cleared_page_by_page(start, level):
    broker = start(NAMESPACES + f'[durability]\nlevel = "{level}"\n')
    api = Api(broker)
    topics = [f"ha/{number}/config" for number in range(MANY)]
    retain(broker, [*topics, "ha/state", "other/config"])
    api("PUT", "/retained/message", {"payload": "x"}, topic="ha/1/config", namespace="blue")
    with Peer(broker.port(), 5).accepted(client_id="watch") as watch:
        watch.subscribed("ha/7/#", 2 << 4)
        dry, _ = cleared(api, filter="ha/+/config", dry_run="true")
        assert dry == {"matched": MANY, "cleared": 0, "refused": 0}
        assert len(api.all("/retained", limit=1000, filter="ha/#")) == MANY + 2
        sums, pages = cleared(api, filter="ha/+/config", limit=100)
        assert sums == {"matched": MANY, "cleared": MANY, "refused": 0}
        assert pages >= 3
        # As from a client that clears it.
        assert watch.message() == ("ha/7/config", b"", 0, 0)
    left = api.all("/retained", filter="#")
    assert sorted((row["namespace"], row["topic"]) for row in left) == [
        ("blue", "ha/1/config"), ("default", "ha/state"), ("default", "other/config"),
    ]
    assert cleared(api, filter="#", namespace="blue")[0]["cleared"] == 1
    assert cleared(api, filter="#", namespace="blue")[0]["matched"] == 0
    broker.restart()
    kept = [row["topic"] for row in Api(broker).all("/retained", filter="#")]
    assert sorted(kept) == ([] if level == "memory" else ["ha/state", "other/config"])


def test_clearing_by_filter_needs_a_filter_and_the_role_and_is_audited(start, passwords):
    broker = start(USERS, files={"users": passwords})
    viewer, api = (
        Api(broker, basic(*user), nth=1) for user in (("anna", "secret"), ("bruno", "geheim"))
    )
    viewer("DELETE", "/retained?filter=%23", status=403)
    api("DELETE", "/retained", status=400)
    api("DELETE", "/retained?filter=a%23", status=400)
    api("DELETE", "/retained?filter=a&namespace=none", status=404)
    api("DELETE", "/retained?filter=a&limit=1001", status=400)
    api("DELETE", "/retained?filter=a")
    assert [status for _, status in audited(broker, 6)] == [403, 400, 400, 404, 400, 200]


def test_ctl_counts_asks_and_clears(start):
    broker = start(NAMESPACES)
    retain(broker, ["a/1", "a/2", "b/1"])
    counted = ctl(broker, "retained", "clear", "a/#", "--dry-run")
    assert counted.split() == ["matched", "2"]
    assert "2 retained messages match 'a/#' in the namespace 'default'; add --yes" in ctl(
        broker, "retained", "clear", "a/#", code=1
    )
    assert asked(broker, "n\n", "a/#") == 1
    assert len(Api(broker).all("/retained")) == 3
    assert asked(broker, "y\n", "a/#") == 0
    assert [row["topic"] for row in Api(broker).all("/retained")] == ["b/1"]
    done = ctl(broker, "retained", "clear", "+/1", "--yes", "--json")
    assert '"cleared": 1' in done and '"matched": 1' in done
    left = ctl(broker, "retained", "clear", "a/#").split()
    assert left == ["cleared", "0", "matched", "0", "refused", "0"]
    assert "namespace" in ctl(
        broker, "retained", "clear", "#", "--yes", "--namespace", "none", code=5
    )


def asked(broker, answer, pattern):
    """The exit code of `ctl` on a terminal at which somebody answers this."""
    own, terminal = pty.openpty()
    command = [QUELEA, "ctl", "--data", str(broker.data), "retained", "clear", pattern]
    os.write(own, answer.encode())
    try:
        done = subprocess.run(
            command, stdin=terminal, capture_output=True, timeout=PATIENCE_SECS, check=False
        )
    finally:
        os.close(own)
        os.close(terminal)
    assert b"Clear them? [y/N]" in done.stderr
    return done.returncode
