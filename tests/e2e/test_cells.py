"""Several cells on three nodes: any client connects anywhere, and all nodes are one broker."""

import json
import os
import signal
import sys
import threading
import urllib.request
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import PATIENCE_SECS, ROOT, eventually
from wire import CONNACK, Peer, connect

sys.path.insert(0, str(ROOT / "tests/cluster"))

from lab import NODES, Lab  # noqa: E402
from test_cluster_engine import pytestmark  # noqa: E402, F401
from test_cluster_misfits import put  # noqa: E402

BROKER = os.environ.get("QUELEA_BIN", ROOT / "target/debug/quelea")
CELLS = 3
TAKEN_OVER = 0x8E
SERVER_UNAVAILABLE = 0x88
# Of a client that waits for an owner of its cell: one in each tenth of 5 s.
TRIES_MAX = 50
LEASE_OF_CELL_0 = "$KV.lab-c0-cluster.lease"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with Lab(tmp_path_factory.mktemp("cells") / "lab", BROKER, shards=2, cells=CELLS) as lab:
        lab.start()
        yield lab


class Client:
    """A paho client at one of the nodes."""

    def __init__(self, lab, node, client_id, *, kept=False, version=paho.MQTTv5, will=None):
        self.messages, self.ends, self.grants, self.done = [], [], [], []
        self.changed = threading.Condition()
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version)
        self.paho.on_message = lambda _c, _u, message: self._note(self.messages, message)
        self.paho.on_disconnect = lambda _c, _u, _f, reason, _p: self._note(self.ends, reason)
        self.paho.on_publish = lambda _c, _u, mid, _r, _p: self._note(self.done, mid)
        self.paho.on_subscribe = lambda _c, _u, _mid, codes, _p: self._note(self.grants, codes)
        if will is not None:
            self.paho.will_set(*will)
        self.kept, self.version = kept, version
        self.connect(lab.mqtt_ports[node])

    def connect(self, port):
        if self.version == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3600 if self.kept else 0
            self.paho.connect(
                "127.0.0.1", port, clean_start=not self.kept, properties=properties
            )
        else:
            self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()
        eventually(self.paho.is_connected, "the CONNACK")

    def _note(self, noted, what):
        with self.changed:
            noted.append(what)
            self.changed.notify_all()

    def subscribe(self, topic, qos=1):
        """Returns the reason code of the SUBACK."""
        had = len(self.grants)
        self.paho.subscribe(topic, qos)
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.grants) > had, PATIENCE_SECS), "SUBACK"
        return self.grants[-1][0].value

    def publish(self, topic, payload, qos=1, retain=False):
        """Returns behind the acknowledgement. Without a connection the client sends it later."""
        sent = self.paho.publish(topic, payload, qos, retain)
        with self.changed:
            assert self.changed.wait_for(lambda: sent.mid in self.done, 2 * PATIENCE_SECS), topic

    def received(self):
        with self.changed:
            return {message.payload.decode() for message in self.messages}

    def payloads(self, count):
        """Those of the first messages, once there are so many."""
        with self.changed:
            has_come = self.changed.wait_for(lambda: len(self.messages) >= count, PATIENCE_SECS)
        got = [message.payload.decode() for message in self.messages]
        assert has_come, f"{len(got)} of {count}: {got[:5]}"
        return got

    def distinct(self, count):
        """The same without repetitions, which QoS 1 allows where a cell moves."""
        def payloads():
            return list(dict.fromkeys(it.payload.decode() for it in self.messages))

        with self.changed:
            has_come = self.changed.wait_for(lambda: len(payloads()) >= count, PATIENCE_SECS)
        assert has_come, f"{len(payloads())} of {count}"
        return payloads()

    def close(self):
        self.paho.disconnect()
        self.paho.loop_stop()


@pytest.fixture
def client(lab):
    """Clients that end with the test: `client(node, client_id, ...)`."""
    made = []

    def make(*arguments, **options):
        made.append(Client(lab, *arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def in_each_cell(lab, prefix):
    """Client ids with their homes in different cells: enough of them are in each."""
    return [f"{prefix}-{number}" for number in range(4 * CELLS)]


def relays_refused(lab, node):
    url = f"http://127.0.0.1:{lab.http_ports[node]}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE_SECS) as answer:
        name, text = "quelea_relays_refused_total ", answer.read().decode()
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def test_what_is_published_anywhere_arrives_everywhere_once_and_in_order(lab, client):
    readers = [
        client(number % NODES, name) for number, name in enumerate(in_each_cell(lab, "reader"))
    ]
    for reader in readers:
        assert reader.subscribe("order/#", 2) == 2
    count = 30
    for node in range(NODES):
        for qos in range(3):
            writer = client(node, f"writer-{node}-{qos}")
            for number in range(count):
                writer.publish(f"order/{node}/{qos}", str(number), qos)
    for reader in readers:
        reader.payloads(NODES * 3 * count)
        by_topic = {}
        for message in reader.messages:
            by_topic.setdefault(message.topic, []).append(int(message.payload))
        assert len(by_topic) == NODES * 3
        assert all(got == list(range(count)) for got in by_topic.values()), by_topic


def test_older_clients_and_those_without_a_client_id_just_work(lab, client):
    readers = [client(node, "", version=paho.MQTTv311) for node in range(NODES)]
    readers += [client(node, "") for node in range(NODES)]
    for reader in readers:
        reader.subscribe("older/a")
    for node in range(NODES):
        client(node, f"older-{node}", version=paho.MQTTv31).publish("older/a", str(node))
    for reader in readers:
        assert sorted(reader.payloads(NODES)) == ["0", "1", "2"]


def test_a_session_is_found_at_any_node_with_what_it_missed(lab, client):
    names = in_each_cell(lab, "kept")
    for name in names:
        one = client(0, name, kept=True)
        one.subscribe(f"kept/{name}")
        one.close()
    writer = client(1, "kept-writer")
    for name in names:
        writer.publish(f"kept/{name}", name)
    for name in names:
        assert client(2, name, kept=True).payloads(1) == [name]


def test_a_client_id_is_connected_once_in_the_whole_cluster(lab, client):
    for name in in_each_cell(lab, "twice"):
        first = client(0, name)
        client(1, name)
        eventually(lambda first=first: first.ends, "the end of the first connection")
        assert first.ends[0].value == TAKEN_OVER
        first.paho.loop_stop()


def test_retained_messages_are_found_from_anywhere(lab, client):
    writer = client(0, "retainer")
    topics = [f"retained/{number}" for number in range(12)]
    for topic in topics:
        writer.publish(topic, topic, retain=True)
    for node in range(NODES):
        exact = client(node, f"exact-{node}")
        for topic in topics:
            exact.subscribe(topic)
        assert sorted(exact.payloads(len(topics))) == sorted(topics)
        several = client(node, f"several-{node}")
        several.subscribe("retained/+")
        assert sorted(several.payloads(len(topics))) == sorted(topics)
        assert all(message.retain for message in several.messages)
    for topic in topics:
        writer.publish(topic, b"", retain=True)
    late = client(1, "late")
    late.subscribe("retained/#")
    writer.publish("retained/fence", "fence")
    assert late.payloads(1) == ["fence"]


def test_a_will_is_published_when_a_connection_ends(lab, client):
    reader = client(2, "mourner")
    reader.subscribe("will/#")
    names = in_each_cell(lab, "mortal")
    for number, name in enumerate(names):
        mortal = client(number % NODES, name, will=(f"will/{name}", "gone", 1))
        # Without a DISCONNECT.
        mortal.paho.loop_stop()
        mortal.paho.socket().close()
    reader.payloads(len(names))
    assert {message.topic for message in reader.messages} == {f"will/{name}" for name in names}


def test_a_shared_subscription_is_refused(lab, client):
    assert client(0, "sharer").subscribe("$share/group/a") == 0x9E


def test_a_large_message_passes_and_a_reader_that_stops_stops_nobody_else(lab, client):
    stuck = [Peer(lab.mqtt_ports[node]) for node in range(NODES)]
    for number, peer in enumerate(stuck):
        peer.accepted(client_id=f"stuck-{number}")
        peer.subscribed("large/a", 0)
    readers = [client(node, f"large-{node}") for node in range(NODES)]
    for reader in readers:
        reader.subscribe("large/a")
    payload = "x" * 300_000
    writer = client(0, "large-writer")
    for _ in range(20):
        writer.publish("large/a", payload)
    for reader in readers:
        assert reader.payloads(20) == [payload] * 20
    for peer in stuck:
        peer.close()


def test_a_cell_that_loses_its_lease_ends_alone(lab, client):
    """Another node seems to have taken the cell: the other cells of its node go on."""
    names = in_each_cell(lab, "stayer")
    stayers = [client(node, f"{name}-{node}") for name in names for node in range(NODES)]
    for stayer in stayers:
        stayer.subscribe("stay/a")
    pids = [process.pid for process in lab.processes.values()]
    lease = {"holder": {"node": "forger", "instance": 1, "address": ""}, "epoch": 90, "count": 1}
    put(f"nats://127.0.0.1:{lab.engine_ports[0]}", LEASE_OF_CELL_0, json.dumps(lease).encode())
    eventually(lambda: any(stayer.ends for stayer in stayers), "the end of connections")
    lab.wait("owners", lambda: lab.owners()[0] is None or None)
    lab.wait("an owner of each cell", lab.all_owners)
    ended = [stayer for stayer in stayers if stayer.ends]
    assert 0 < len(ended) < len(stayers)
    assert [process.pid for process in lab.processes.values()] == pids
    for stayer in ended:
        eventually(stayer.paho.is_connected, "the connection again")
        stayer.subscribe("stay/a")
    client(1, "stay-writer").publish("stay/a", "here")
    for stayer in stayers:
        assert stayer.payloads(1) == ["here"]


def test_the_loss_of_a_node_loses_nothing_that_was_acknowledged(lab, client):
    """The last test: one of the nodes is gone."""
    names = in_each_cell(lab, "survivor")
    owners = lab.wait("an owner of each cell", lab.all_owners)
    victim = owners[0]
    others = [node for node in range(NODES) if node != victim]
    for name in names:
        one = client(others[0], name, kept=True)
        one.subscribe("loss/a")
        one.close()
    writer = client(others[0], "loss-writer", kept=True)
    writer.publish("loss/a", "before")
    # Of some of them the front and the cell are lost together.
    mourner = client(others[1], "loss-mourner", kept=True)
    mourner.subscribe("loss/will")
    for name in in_each_cell(lab, "lost"):
        client(victim, name, will=("loss/will", name, 1))
    lab.processes.pop(f"node{victim + 1}").send_signal(signal.SIGKILL)
    refused = relays_refused(lab, others[0])
    waiting = [Peer(lab.mqtt_ports[others[0]]).send(connect(f"waits-{name}")) for name in names]
    writer.publish("loss/a", "after")
    lab.wait("other owners", lambda: all(n in others for n in lab.owners()) or None)
    for peer in waiting:
        # The end: the lost node may have had the CONNECT.
        answer = peer.recv()
        assert answer is None or answer[0] == CONNACK and answer[1][1] in {0, SERVER_UNAVAILABLE}
        peer.close()
    tries = relays_refused(lab, others[0]) - refused
    assert tries <= len(names) * TRIES_MAX, "clients without an owner try again at a pace"
    for number, name in enumerate(names):
        one = client(others[number % 2], name, kept=True)
        assert one.distinct(2) == ["before", "after"]
    eventually(lambda: mourner.received() == set(in_each_cell(lab, "lost")), "all wills")
