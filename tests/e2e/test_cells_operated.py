"""Operators of a cluster with several cells: `quelea cluster status`, `switchover` and `drain`."""

import json
import sys
import threading

import pytest

from broker import ROOT, eventually
from test_cells import BROKER, CELLS, client, in_each_cell  # noqa: F401

sys.path.insert(0, str(ROOT / "tests/cluster"))

from lab import NODES, Lab  # noqa: E402
from test_cluster_engine import pytestmark  # noqa: E402, F401

NAMES = [f"node{node + 1}" for node in range(NODES)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    directory = tmp_path_factory.mktemp("operated") / "lab"
    with Lab(directory, BROKER, shards=2, cells=CELLS) as lab:
        lab.start()
        yield lab


def done(ran):
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def refused(ran, expected):
    assert ran.returncode == 1 and expected in ran.stderr, ran.stdout + ran.stderr
    assert not ran.stdout


def status(lab):
    return json.loads(done(lab.operate("status", "--json")))


def active(lab):
    """The active node of each cell, as `status` says."""
    return [cell["active"] for cell in status(lab)["cells"]]


def settled(lab):
    """The status when each cell has a node and two standbys that have caught up."""

    def is_settled():
        shown = status(lab)
        cells = shown["cells"]
        is_whole = all(len(cell["standbys_caught_up"]) == NODES - 1 for cell in cells)
        return shown if is_whole and all(cell["active"] for cell in cells) else None

    return lab.wait("standbys of all cells", is_settled)


def test_status_shows_all_nodes_and_cells(lab):
    shown = settled(lab)
    nodes, cells = shown["nodes"], shown["cells"]
    assert [node["node"] for node in nodes] == NAMES
    assert [node["link"] for node in nodes] == [f"127.0.0.1:{port}" for port in lab.link_ports]
    assert [node["address"] for node in nodes] == [f"127.0.0.1:{port}" for port in lab.mqtt_ports]
    assert all(node["is_member"] and node["is_heard"] for node in nodes)
    assert len({node["config"] for node in nodes}) == 1
    assert [cell["cell"] for cell in cells] == list(range(CELLS))
    assert [cell["active"] for cell in cells] == [NAMES[owner] for owner in lab.all_owners()]
    active_for = {node["node"]: node["cells_active"] for node in nodes}
    for cell in cells:
        assert cell["cell"] in active_for[cell["active"]]
        assert cell["lease"]["node"] == cell["active"] and cell["lease"]["epoch"] > 0
        assert {node["node"] for node in cell["nodes"]} == set(NAMES)
        assert cell["streams"][0]["name"] == f"lab-c{cell['cell']}-cell-000"
        assert cell["streams"][0]["replicas_current"] == 3
    assert sum(map(len, active_for.values())) == CELLS
    text = done(lab.operate("status"))
    of_nodes, of_cells = text.split("\n\n")
    assert [line.split()[0] for line in of_nodes.splitlines()] == ["node", *NAMES]
    lines = [line.split()[:2] for line in of_cells.splitlines()[1:]]
    assert lines == [[str(cell["cell"]), cell["active"]] for cell in cells]


def test_what_there_is_not_is_refused(lab):
    cluster = "--cell: must be set, because cluster 'lab' has 3 cells"
    refused(lab.operate("switchover"), cluster)
    refused(lab.operate("switchover", "node2"), cluster)
    refused(lab.operate("switchover", "--cell", "3"), "--cell: must be from 0 to 2, got 3")
    known = "unknown node 'node9'; known nodes: node1, node2, node3"
    refused(lab.operate("drain", "node9"), known)
    owner = settled(lab)["cells"][1]["active"]
    refused(lab.operate("switchover", "--cell", "1", "node9"), "unknown node 'node9'")
    refused(lab.operate("switchover", "--cell", "1", owner), f"'{owner}' is active already")


def test_a_switchover_moves_one_cell(lab):
    before = [cell["active"] for cell in settled(lab)["cells"]]
    to = next(name for name in NAMES if name != before[2])
    moved = done(lab.operate("switchover", "--cell", "2", to))
    assert moved.startswith(f"cell 2: '{to}' is active, epoch ")
    assert active(lab) == [*before[:2], to]


class Publisher(threading.Thread):
    """Publishes one message after the other, until it is told to stop."""

    def __init__(self, client):
        super().__init__()
        self.client, self.acknowledged, self.is_stopping = client, [], threading.Event()

    def run(self):
        number = 0
        while not self.is_stopping.is_set():
            self.client.publish("drained/a", str(number))
            self.acknowledged.append(str(number))
            number += 1

    def stop(self):
        self.is_stopping.set()
        self.join()


def test_a_drain_moves_all_cells_and_loses_nothing_that_was_acknowledged(lab, client):  # noqa: F811
    first = settled(lab)["cells"][0]["active"]
    # A node with two cells at least.
    lab.operate("switchover", "--cell", "1", first)
    shown = settled(lab)["cells"]
    cells = [cell["cell"] for cell in shown if cell["active"] == first]
    assert len(cells) >= 2
    other = next(node for node in range(NODES) if NAMES[node] != first)
    readers = [client(other, name, kept=True) for name in in_each_cell(lab, "drain-reader")]
    for reader in readers:
        reader.subscribe("drained/a")
    publisher = Publisher(client(other, "drain-writer", kept=True))
    publisher.start()
    eventually(lambda: publisher.acknowledged, "a first message")
    lines = done(lab.operate("drain", first)).splitlines()
    had = len(publisher.acknowledged)
    eventually(lambda: len(publisher.acknowledged) > had, "a message after the drain")
    publisher.stop()
    assert [line.split(":")[0] for line in lines[:-1]] == [f"cell {cell}" for cell in cells]
    assert lines[-1] == f"'{first}' is not active for any cell now"
    after = settled(lab)
    assert first not in [cell["active"] for cell in after["cells"]]
    counts = [len(node["cells_active"]) for node in after["nodes"] if node["node"] != first]
    assert sorted(counts) == [1, 2], "the cells are spread"
    for reader in readers:
        assert reader.distinct(len(publisher.acknowledged)) == publisher.acknowledged
    # The cells of the second node have just become active there.
    second = after["cells"][cells[-1]]["active"]
    done(lab.operate("drain", second))
    assert second not in active(lab)
    nothing = done(lab.operate("drain", second))
    assert nothing == f"'{second}' is not active for any cell\n"


def test_a_node_that_is_gone_is_shown_and_its_cells_say_so(lab):
    """The last test: only one node is left."""
    shown = settled(lab)["cells"]
    victim = shown[0]["active"]
    process = lab.processes.pop(victim)
    process.kill()
    process.wait()

    def is_gone():
        nodes = {node["node"]: node for node in status(lab)["nodes"]}
        return nodes[victim]["is_heard"] is False or None

    lab.wait("the silence of the node", is_gone)
    lab.wait("owners", lambda: victim not in active(lab) and None not in active(lab) or None)
    node = next(node for node in status(lab)["nodes"] if node["node"] == victim)
    assert node["is_member"] and node["version"] is None and node["cells_active"] == []
    last = [name for name in NAMES if name != victim]
    for name in last:
        process = lab.processes.pop(name)
        process.kill()
        process.wait()
    shown = status(lab)
    assert [cell["active"] for cell in shown["cells"]] == [None] * CELLS
    text = done(lab.operate("status"))
    for cell in shown["cells"]:
        holder = cell["lease"]["node"]
        assert f"cell {cell['cell']}: no node is active; lease: {holder} with epoch" in text
    left = f"; '{holder}' is still active for cells"
    ran = lab.operate("drain", holder)
    assert ran.returncode == 1 and left in ran.stderr, ran.stdout + ran.stderr
