"""Operators of a cluster with several cells: `quelea cluster status`."""

import json
import sys

import pytest

from broker import ROOT
from test_cells import BROKER, CELLS

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


def status(lab):
    return json.loads(done(lab.operate("status", "--json")))


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
