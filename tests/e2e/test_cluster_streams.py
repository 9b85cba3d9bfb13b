"""Streams and rules in a cluster: they move with the active node, and nothing is lost on the way."""

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker import QUELEA, eventually
from receiver import Receiver
from test_cluster_directory import (  # noqa: F401
    BASE,
    Standby,
    by_command,
    cluster,
    done,
    has_read,
    nats,
    shown,
)
from test_cluster_format import ask
from test_cluster_view import Operated, _why_not, settled
from wire import PUBACK, Peer, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from lab import NODES  # noqa: E402

RULES = """
[[streams]]
name = "cars"
filters = ["cars/#"]
file_bytes = "1MiB"

[[targets]]
name = "hook"
type = "http"
url = "http://127.0.0.1:{port}/in"

[[rules]]
name = "all"
filter = "cars/#"
form = "raw"
target = "hook"
order = "topic"
retry_secs = [1]
"""

# Blocks go into files once 4 MiB wait.
PER_ROUND = 1500
PAD_BYTES = 4000
WINDOW = 20
# A slow machine sends so many within the patience of a test.
STEP = 500


class Routed(Operated):
    """Nodes with one rule, whose target has a port that nothing listens on at first."""

    port = 0
    # Numbers of messages, which no test uses again.
    next = 0

    def rules(self):
        return RULES.format(port=self.port)

    def rules_path(self, node):
        return self.directory / f"node{node + 1}" / "rules.toml"

    def engine_bytes(self):
        command = [QUELEA, "cluster", "status", "--json", "--config", self.config_path(0)]
        ran = subprocess.run(map(str, command), capture_output=True, check=True)
        return json.loads(ran.stdout)["streams"][1]["bytes"]

    def broker_config(self, node):
        path = self.rules_path(node)
        path.write_text(self.rules())
        # Room in the logs for what is in no file yet.
        return super().broker_config(node) + f"""
[routing]
file = "{path}"
target_networks = ["127.0.0.0/8"]
memory_bytes_max = "32MiB"
"""

    def publish(self, node, count=PER_ROUND):
        """Returns the numbers."""
        first, self.next = self.next, self.next + count
        publish_all(self.mqtt_ports[node], first, count)
        return list(range(first, self.next))

    def files(self, node):
        """Their names: a file is longer where it was written ahead of a kill. Nothing reads that."""
        return set(stream_files(self.directory / f"node{node + 1}/data"))

    def row(self, node):
        return self.ask(node, "GET", "/rules/all")

    def switch_over(self, node):
        command = [QUELEA, "cluster", "switchover", "--config", self.config_path(0)]
        return subprocess.run([*map(str, command), f"node{node + 1}"], check=False).returncode

    def config_path(self, node):
        return self.directory / f"node{node + 1}" / "quelea.toml"

    def restart(self, node):
        self.processes.pop(f"node{node + 1}").wait()
        self.start_broker(node)


def publish_all(port, first, count):
    """With QoS 1, each acknowledged."""
    with Peer(port) as peer:
        peer.accepted(client_id="car-7")
        for begin in range(0, count, WINDOW):
            part = range(begin, min(begin + WINDOW, count))
            for at in part:
                payload = payload_of(first + at)
                peer.send(publish("cars/7", payload, qos=1, packet_id=at + 1))
            for _ in part:
                peer.expect(PUBACK)


def stream_files(data):
    """Files of the stream in a data directory, with their sizes."""
    found = (Path(data) / "streams/1").glob("*.stream")
    return {path.name: path.stat().st_size for path in found}


def payload_of(number):
    """It cannot be packed."""
    return f"{number}.{random.Random(number).randbytes(PAD_BYTES // 2).hex()}".encode()


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if why := _why_not():
        print(why)
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("cluster-streams")
    with Routed(directory / "lab", QUELEA, shards=2) as lab:
        lab.port = closed_port()
        lab.start()
        yield lab
    shutil.rmtree(directory, ignore_errors=True)


def numbers(receiver, first=0):
    """What the target got, from this number on: a takeover may send earlier ones again."""
    found = (int(payload.split(".")[0]) for payload in receiver.payloads())
    return [number for number in found if number >= first]


def firsts(receiver, first=0):
    return list(dict.fromkeys(numbers(receiver, first)))


def awaited(receiver, published):
    """Returns when the target has all of these, the first copies in order."""
    first = published[0]
    reached(lambda: len(set(numbers(receiver, first))), len(published))
    assert firsts(receiver, first) == published


def reached(count, goal):
    """Waits until so many are counted, as long as they become more."""
    for part in [*range(0, goal, STEP), goal]:
        eventually(lambda part=part: count() >= part, f"{part} messages")


def caught_up(lab, node):
    """Waits until the rule has nothing left, as long as that becomes less."""
    left = lab.row(node)["lag_messages"]
    while left:
        goal = max(0, left - STEP)
        found = eventually(lambda goal=goal: lag_below(lab, node, goal), f"a lag of {goal} messages")
        left = found[0]


def lag_below(lab, node, goal):
    lag = lab.row(node)["lag_messages"]
    return (lag,) if lag <= goal else None


def kill(lab, node):
    lab.processes[f"node{node + 1}"].kill()


def test_what_was_acknowledged_reaches_the_target_whichever_node_is_killed(lab):
    published = []
    for _ in range(3):
        active = settled(lab)
        published += lab.publish(active)
        eventually(lambda: lab.files(active), "a file of the stream")
        kill(lab, active)
        lab.restart(active)
    # Another node is about to be active, and has not met the target yet.
    receiver = Receiver(port=lab.port)
    try:
        awaited(receiver, published)
    finally:
        receiver.stop()
    active = settled(lab)
    # The standbys have what the active node has.
    caught_up(lab, active)
    for node in set(range(NODES)) - {active}:
        eventually(lambda node=node: lab.files(node) == lab.files(active), "the same files")


def test_a_node_that_was_paused_sends_nothing_behind_its_successor(lab):
    receiver = Receiver(answers=lambda body: 503, port=lab.port)
    try:
        paused = settled(lab)
        published = lab.publish(paused)
        lab.send(f"node{paused + 1}", signal.SIGSTOP)
        receiver.answers = lambda body: 200
        others = set(range(NODES)) - {paused}
        active = eventually(lambda: [it for it in others if serves(lab, it)], "a takeover")[0]
        published += lab.publish(active)
        awaited(receiver, published)
        lab.send(f"node{paused + 1}", signal.SIGCONT)
        settled(lab)
        assert firsts(receiver, published[0]) == published
    finally:
        receiver.stop()


def serves(lab, node):
    state = lab.readiness(node)
    return state is not None and state[0] == 200


def test_an_empty_node_gets_all_files_before_it_is_active(lab):
    receiver = Receiver(port=lab.port)
    try:
        active = settled(lab)
        published = lab.publish(active)
        awaited(receiver, published)
        eventually(lambda: len(lab.files(active)) > 1, "files of the stream")
        empty = next(node for node in range(NODES) if node != active)
        kill(lab, empty)
        shutil.rmtree(lab.directory / f"node{empty + 1}" / "data")
        lab.restart(empty)
        settled(lab)
        eventually(lambda: lab.files(empty) == lab.files(active), "the copies")
        assert lab.switch_over(empty) == 0
        eventually(lambda: lab.active() == empty, "the switchover")
        settled(lab)
        caught_up(lab, empty)
        before = len(receiver.payloads())
        run = lab.row(empty)["run"]
        assert lab.ask(empty, "POST", "/rules/all/seek", body={"to": "beginning"})["run"] == run + 1
        # All that the cluster has stored since it began.
        reached(lambda: len(receiver.payloads()) - before, lab.next)
        assert numbers(receiver)[before:] == list(range(lab.next))
        assert lab.ask(empty, "GET", "/streams/cars")["stored_messages"] == lab.next
    finally:
        receiver.stop()


def test_a_node_with_an_older_file_of_rules_does_not_become_active(lab):
    active = settled(lab)
    published = lab.publish(active, WINDOW)
    older = next(node for node in range(NODES) if node != active)
    path = lab.rules_path(older)
    path.write_text(lab.rules().split("[[rules]]")[0])
    receiver = Receiver(port=lab.port)
    try:
        # It has the lease for a moment before it refuses, and may say so to who asks just then.
        lab.switch_over(older)
        eventually(lambda: "does not define rule 'all'" in lab.log(older), "the refusal")
        served = eventually(lambda: (lab.active(),) if lab.active() is not None else None)[0]
        assert served != older
        path.write_text(lab.rules())
        awaited(receiver, published)
    finally:
        receiver.stop()


def test_an_engine_without_space_for_files_stops_no_publisher_while_memory_lasts(lab):
    active = settled(lab)
    url = f"nats://127.0.0.1:{lab.engine_ports[active]}"
    blocks = "lab-blocks-000"
    info = ask(url, f"STREAM.INFO.{blocks}")
    full = {**info["config"], "max_bytes": info["state"]["bytes"] + 4096}
    fault = lambda: fault_of_files(lab, active)  # noqa: E731
    receiver = Receiver(port=lab.port)
    try:
        ask(url, f"STREAM.UPDATE.{blocks}", full)
        published = lab.publish(active)
        assert "maximum bytes exceeded" in eventually(fault, "the fault")
        published += lab.publish(active, WINDOW)
        awaited(receiver, published)
        ask(url, f"STREAM.UPDATE.{blocks}", info["config"])
        eventually(lambda: fault() is None, "the end of the fault")
        caught_up(lab, active)
        assert firsts(receiver, published[0]) == published
    finally:
        ask(url, f"STREAM.UPDATE.{blocks}", info["config"])
        receiver.stop()


def fault_of_files(lab, node):
    rows = lab.ask(node, "GET", "/cluster")["nodes"]
    return next(row["stream_files"]["fault"] for row in rows if row["node"] == f"node{node + 1}")


def test_what_retention_deletes_goes_from_the_engine(lab):
    active = settled(lab)
    caught_up(lab, active)
    dropped = lab.row(active)["sum"]["dropped_retention"]
    for node in range(NODES):
        limited = lab.rules().replace("file_bytes", 'bytes_max = "2MiB"\nfile_bytes')
        lab.rules_path(node).write_text(limited)
        lab.send(f"node{node + 1}", signal.SIGHUP)
    eventually(lambda: lab.ask(active, "GET", "/streams/cars")["bytes_max"] == 2 << 20, "the reload")
    published = [number for _ in range(3) for number in lab.publish(active)]
    eventually(lambda: lab.engine_bytes() < 6 << 20, "a smaller stream of the engine")
    receiver = Receiver(port=lab.port)
    try:
        caught_up(lab, active)
        found = firsts(receiver, published[0])
        assert found == sorted(found)
        dropped = lab.row(active)["sum"]["dropped_retention"] - dropped
        assert len(found) + dropped == len(published)
    finally:
        receiver.stop()


def test_definitions_of_the_api_move_with_the_active_node(lab):
    receiver = Receiver(port=lab.port)
    try:
        active = settled(lab)
        target = {"type": "http", "url": receiver.url, "headers": {"authorization": "hunter2"}}
        rule = {"stream": "bikes", "filter": "cars/#", "form": "raw", "target": "own", "retry_secs": [1]}
        stream = {"filters": ["cars/#"]}
        for kind, name, keys in (("stream", "bikes", stream), ("target", "own", target), ("rule", "bikes", rule)):
            lab.ask(active, "PUT", f"/{kind}/definition?name={name}", body=keys)
        lab.publish(active, WINDOW)
        eventually(lambda: lab.ask(active, "GET", "/rules/bikes")["sum"]["delivered"] == WINDOW)
        before = lab.ask(active, "GET", "/definitions")
        kill(lab, active)
        eventually(lambda: lab.active() not in (None, active), "another active node")
        lab.restart(active)
        active = settled(lab)
        assert lab.ask(active, "GET", "/definitions") == before
        lab.publish(active, WINDOW)
        stored = lambda: lab.ask(active, "GET", "/rules/bikes")["sum"]["stored"]  # noqa: E731
        eventually(lambda: stored() == 2 * WINDOW, "the same stream")
        # What is deleted is missing in no file of another node.
        lab.ask(active, "DELETE", "/stream/definition?name=bikes&force=true", status=204)
        other = next(node for node in range(NODES) if node != active)
        assert lab.switch_over(other) == 0
        eventually(lambda: lab.active() == other, "the switchover")
        settled(lab)
        names = [own["name"] for own in lab.ask(other, "GET", "/definitions")["items"]]
        assert sorted(names) == ["all", "cars", "hook", "own"]
        lab.ask(other, "DELETE", "/target/definition?name=own", status=204)
    finally:
        receiver.stop()


ALONE = BASE + """
[routing]
file = "{dir}/rules.toml"
target_networks = ["127.0.0.0/8"]
memory_bytes_max = "16MiB"
"""


def node(nats, name):
    return f'{ALONE}\n[cluster]\nname = "plant"\nnode = "{name}"\nservers = ["{nats}"]\n'


def publish_to(broker, first, count=PER_ROUND):
    publish_all(broker.port(), first, count)


def test_streams_go_into_a_cluster_and_come_back(nats, start, tmp_path):
    port = closed_port()
    files = {"rules.toml": RULES.format(port=port)}
    config = tmp_path / "cluster.toml"
    config.write_text(node(nats, "n1").replace("{dir}", str(tmp_path)))
    (tmp_path / "rules.toml").write_text(files["rules.toml"])
    single = start(ALONE, files)
    publish_to(single, 0)
    eventually(lambda: stream_files(single.data), "a file of the stream")
    single.terminate()
    assert single.wait() == 0
    done(cluster(config, "init", "--allow-unreplicated", "--allow-unsynced"))
    done(cluster(config, "import", single.data))
    # Files that no journal names yet are written again: what is in them shows at the end.
    first = start(node(nats, "n1"), files)
    publish_to(first, PER_ROUND)
    first.terminate()
    assert first.wait() == 0
    exported = tmp_path / "exported"
    done(cluster(config, "export", exported))
    receiver = Receiver(port=port)
    try:
        again = start(ALONE, files, data=exported)
        publish_to(again, 2 * PER_ROUND)
        eventually(lambda: len(set(numbers(receiver))) == 3 * PER_ROUND, "all messages")
        assert firsts(receiver) == list(range(3 * PER_ROUND))
    finally:
        receiver.stop()


def test_a_standby_is_backed_up_with_its_streams(nats, start, tmp_path):
    port = closed_port()
    files = {"rules.toml": RULES.format(port=port)}
    config = tmp_path / "n1.toml"
    config.write_text(node(nats, "n1").replace("{dir}", str(tmp_path)))
    (tmp_path / "rules.toml").write_text(files["rules.toml"])
    done(cluster(config, "init", "--allow-unreplicated", "--allow-unsynced"))
    active = start(node(nats, "n1"), files)
    publish_to(active, 0)
    eventually(lambda: stream_files(active.data), "a file of the stream")
    standby = Standby(node(nats, "n2"), files)
    try:
        last = shown(config)["streams"][0]["last"]
        eventually(lambda: has_read(config, "n2", last), "the standby's catching up")
        copy = tmp_path / "copy"
        by_command(standby, copy)
    finally:
        standby.stop()
    active.kill()
    receiver = Receiver(port=port)
    try:
        start(ALONE, files, data=copy)
        eventually(lambda: len(set(numbers(receiver))) == PER_ROUND, "all messages")
        assert firsts(receiver) == list(range(PER_ROUND))
    finally:
        receiver.stop()
