"""A cluster with several cells changes while it runs: nodes, and which cells they have."""

import signal
import sys
from collections import Counter

import pytest

from broker import ROOT, eventually
from test_cells import BROKER, client, in_each_cell  # noqa: F401
from test_cells_operated import done, refused
from wire import CONNACK, PUBACK, Peer, connect, publish

sys.path.insert(0, str(ROOT / "tests/cluster"))

from lab import NODES, Lab  # noqa: E402
from test_cluster_engine import pytestmark  # noqa: E402, F401

USE_ANOTHER_SERVER = 0x9C
REDIRECTING = 2
CELLS = 4


class Redirecting(Lab):
    """The last node redirects clients."""

    def links_config(self, node):
        redirect = "redirect = true\n" if node == REDIRECTING else ""
        return redirect + super().links_config(node)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    directory = tmp_path_factory.mktemp("changed") / "lab"
    with Redirecting(directory, BROKER, shards=2, cells=CELLS) as lab:
        lab.start()
        yield lab


def answer_of(lab, node, client_id, version):
    with Peer(lab.mqtt_ports[node]) as peer:
        kind, body = peer.send(connect(client_id, version=version)).recv()
        assert kind == CONNACK
        return body


def log(lab, node):
    return (lab.directory / f"node{node + 1}/log").read_text()


def test_a_client_is_redirected_to_the_node_of_its_cell(lab):
    owners = lab.wait("an owner of each cell", lab.all_owners)
    others = [node for node in range(NODES) if node != REDIRECTING and node in owners]
    addresses = {node: f"127.0.0.1:{lab.mqtt_ports[node]}".encode() for node in others}

    def redirected():
        names = in_each_cell(lab, "sent")
        answers = {name: answer_of(lab, REDIRECTING, name, 5) for name in names}
        assert all(body[1] in {0, USE_ANOTHER_SERVER} for body in answers.values())
        return {name: body for name, body in answers.items() if body[1] == USE_ANOTHER_SERVER}

    # A node relays clients until it has heard of the addresses of others.
    sent = eventually(redirected, "a redirection")
    for name, body in sent.items():
        found = [node for node, address in addresses.items() if address in body]
        assert len(found) == 1, body
        assert answer_of(lab, found[0], name, 5)[1] == 0
        # Clients of MQTT 3 are relayed.
        assert answer_of(lab, REDIRECTING, name, 4)[1] == 0


def test_cells_are_shared_equally_again(lab):
    lab.wait("an owner of each cell", lab.all_owners)
    done(lab.operate("drain", "node1"))
    assert 0 not in lab.wait("an owner of each cell", lab.all_owners)
    moved = done(lab.operate("rebalance", "--interval", "0")).splitlines()
    assert moved[-1] == f"cells moved: {len(moved) - 1}" and len(moved) > 1
    counts = Counter(lab.wait("an owner of each cell", lab.all_owners))
    assert max(counts.values()) - min(counts[node] for node in range(NODES)) <= 1
    assert done(lab.operate("rebalance")) == "cells moved: 0\n"


def test_a_node_is_removed_and_added_again(lab, client):  # noqa: F811
    link = f"127.0.0.1:{lab.link_ports[REDIRECTING]}"
    refused(lab.operate("node", "remove", "node3"), "'node3' is active for cell")
    done(lab.operate("drain", "node3"))
    process = lab.processes.pop("node3")
    process.send_signal(signal.SIGTERM)
    process.wait()
    done(lab.operate("node", "remove", "node3"))
    for node in (0, 1):
        eventually(lambda node=node: "list of nodes: removed" in log(lab, node), "the removal")
    lab.start_broker(REDIRECTING)
    eventually(lambda: "missing in the list of nodes" in log(lab, REDIRECTING), "the refusal")
    lab.processes.pop("node3").wait()
    done(lab.operate("node", "add", "node3", "--link", link))
    for node in (0, 1):
        eventually(lambda node=node: "list of nodes: changed" in log(lab, node), "the addition")
    lab.start_broker(REDIRECTING)
    is_ready = lambda: (lab.readiness(REDIRECTING) or [0])[0] == 200 or None  # noqa: E731
    lab.wait("readiness", is_ready)
    names = in_each_cell(lab, "added")
    reader = client(0, "added-reader")
    reader.subscribe("added/a")
    for name in names:
        # The new node relays clients of MQTT 3.1.1.
        with Peer(lab.mqtt_ports[REDIRECTING], version=4) as peer:
            peer.accepted(client_id=name)
            peer.send(publish("added/a", name, qos=1, version=4)).expect(PUBACK)
    assert set(reader.payloads(len(names))) == set(names)
