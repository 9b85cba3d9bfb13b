"""A cluster with several cells: what `init` makes, its nodes, and who refuses it."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import certificates
from broker import PATIENCE_SECS, QUELEA
from test_cluster_directory import cluster, done, nats, with_cluster  # noqa: F401
from test_cluster_format import ask, stored
from test_cluster_misfits import ACCEPT, put, served

CELLS = 3
# A bucket of the cluster; a bucket and two streams of each cell.
STREAMS = 1 + 3 * CELLS


@pytest.fixture
def config(nats, tmp_path):  # noqa: F811
    """The configuration of a node that is nowhere yet."""
    path = tmp_path / "node.toml"
    path.write_text(with_cluster(nats, "n1"))
    return path


@pytest.fixture
def several(config):
    """The same, with a cluster of three cells."""
    done(init(config))
    return config


def init(config, *arguments):
    return cluster(config, "init", *(arguments or ("--cells", CELLS)), *ACCEPT)


def node(config, command, *arguments):
    """Runs `quelea cluster node`."""
    run = [QUELEA, "cluster", "node", command, "--config", config, *map(str, arguments)]
    return subprocess.run(run, capture_output=True, text=True, timeout=3 * PATIENCE_SECS)


def key(url, name, key):
    return stored(url, f"KV_{name}-cluster", {"last_by_subj": f"$KV.{name}-cluster.{key}"})


def record(url, name):
    return json.loads(key(url, name, "cluster"))


def members(config):
    return json.loads(done(node(config, "list", "--json")))


def refused(ran, expected):
    assert ran.returncode == 1 and expected in ran.stderr, ran.stdout + ran.stderr


def streams(url):
    return set(ask(url, "STREAM.NAMES")["streams"])


def test_init_makes_cells_once(nats, config):  # noqa: F811
    made = done(init(config))
    assert f"created: id {record(nats, 'plant')['id']}, 3 cells of 2 shards" in made
    assert f"{STREAMS} streams created, 0 found" in made
    names = {"KV_plant-cluster"}
    for cell in range(CELLS):
        own = f"plant-c{cell}"
        names |= {f"KV_{own}-cluster", f"{own}-cell-000", f"{own}-blocks-000"}
    assert streams(nats) == names
    whole = record(nats, "plant")
    cells = [record(nats, f"plant-c{cell}") for cell in range(CELLS)]
    assert whole["cells"] == CELLS and isinstance(whole["seed"], int)
    wanted = [(whole["id"], cell) for cell in range(CELLS)]
    assert [(cell["cluster"], cell["cell"]) for cell in cells] == wanted
    assert {cell["shards"] for cell in cells} == {whole["shards"]}
    assert len({whole["id"], *(cell["id"] for cell in cells)}) == 1 + CELLS
    secret = key(nats, "plant", "secret")
    assert len(bytes.fromhex(secret.decode())) == 32
    for again in (init(config), cluster(config, "init", *ACCEPT)):
        assert f"exists: id {whole['id']}" in done(again)
        assert f"0 streams created, {STREAMS} found" in again.stdout
    for other in (1, CELLS + 1):
        expected = f"--cells: must be 3, the fixed number of this cluster, got {other}"
        refused(init(config, "--cells", other), expected)
    assert record(nats, "plant") == whole and key(nats, "plant", "secret") == secret
    assert [record(nats, f"plant-c{cell}") for cell in range(CELLS)] == cells


def test_init_goes_on_where_it_was_broken_off(nats, several):  # noqa: F811
    before = [record(nats, name) for name in ("plant", "plant-c0", "plant-c1")]
    of_last = ("KV_plant-c2-cluster", "plant-c2-cell-000", "plant-c2-blocks-000")
    for name in ("plant-c1-blocks-000", *of_last):
        ask(nats, f"STREAM.DELETE.{name}")
    ask(nats, "STREAM.PURGE.KV_plant-cluster", {"filter": "$KV.plant-cluster.secret"})
    code, log = served_with_links(several)
    assert code == 1 and "the cluster has no secret: run `quelea cluster init` again" in log
    assert "4 streams created, 6 found" in done(init(several))
    assert [record(nats, name) for name in ("plant", "plant-c0", "plant-c1")] == before
    assert record(nats, "plant-c2")["cluster"] == before[0]["id"]
    assert len(key(nats, "plant", "secret")) == 64


def test_a_cell_and_a_cluster_of_its_name_are_told_apart(nats, several, tmp_path):  # noqa: F811
    cell = tmp_path / "cell.toml"
    cell.write_text(with_cluster(nats, "n1").replace('"plant"', '"plant-c1"'))
    expected = "'plant-c1' is cell 1 of another cluster"
    refused(cluster(cell, "init", *ACCEPT), expected)
    refused(cluster(cell, "status"), expected)
    code, log = served(cell, tmp_path / "data")
    assert code == 1 and expected in log
    alone = tmp_path / "alone.toml"
    alone.write_text(with_cluster(nats, "n1").replace('"plant"', '"works-c1"'))
    done(cluster(alone, "init", *ACCEPT))
    works = tmp_path / "works.toml"
    works.write_text(with_cluster(nats, "n1").replace('"plant"', '"works"'))
    refused(init(works), "the bucket 'works-c1-cluster' belongs to another cluster")


def test_nodes_are_added_changed_and_removed(several):
    assert members(several) == []
    refused(node(several, "remove", "n1"), "unknown node 'n1'; known nodes: none")
    added = done(node(several, "add", "n2", "--link", "h2:7883"))
    assert added == "node 'n2' added: link h2:7883\n"
    assert "added" in done(node(several, "add", "n1", "--link", "[::1]:7883"))
    assert "is a member already" in done(node(several, "add", "n1", "--link", "[::1]:7883"))
    assert "changed" in done(node(several, "add", "n2", "--link", "h2:7884"))
    refused(node(several, "add", "n3", "--link", "h2:7884"), "is the address of node 'n2'")
    refused(node(several, "add", "n3", "--link", "h3"), "--link: must be HOST:PORT")
    refused(node(several, "add", "n 3", "--link", "h3:1"), "NAME: must be 1 to 64 letters")
    wanted = [{"node": "n1", "link": "[::1]:7883"}, {"node": "n2", "link": "h2:7884"}]
    assert members(several) == wanted
    assert done(node(several, "list")).splitlines()[1].split() == ["n1", "[::1]:7883"]
    refused(node(several, "remove", "n3"), "unknown node 'n3'; known nodes: n1, n2")
    assert done(node(several, "remove", "n1")) == "node 'n1' removed\n"
    assert members(several) == wanted[1:]


def test_changes_at_the_same_time_are_all_made(several):
    names = [f"n{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        added = pool.map(lambda name: node(several, "add", name, "--link", f"{name}:1"), names)
        for ran in added:
            done(ran)
    assert [member["node"] for member in members(several)] == names


def test_a_cluster_with_one_cell_is_as_before_and_has_no_list_of_nodes(nats, config):  # noqa: F811
    assert "3 streams created, 0 found" in done(init(config, "--cells", 1))
    assert set(record(nats, "plant")) == {"format", "id", "shards", "segment_bytes"}
    assert streams(nats) == {"KV_plant-cluster", "plant-cell-000", "plant-blocks-000"}
    for command in (["list"], ["add", "n1", "--link", "h1:1"], ["remove", "n1"]):
        refused(node(config, *command), "cluster 'plant' has one cell, and no list of nodes")
    refused(init(config), "--cells: must be 1, the fixed number of this cluster, got 3")
    for wrong in (0, 57):
        assert init(config, "--cells", wrong).returncode == 2


def with_links(config):
    certificates.make(config.parent)
    tls = "[cluster.tls]\ncertificate = \"server.crt\"\nkey = \"server.key\"\nca = \"ca.crt\"\n"
    path = config.with_name("links.toml")
    path.write_text(config.read_text() + 'listen = "127.0.0.1:0"\n' + tls)
    return path


def served_with_links(config):
    return served(with_links(config), config.parent / "data")


def test_a_node_that_lacks_something_is_refused(nats, several, tmp_path):  # noqa: F811
    code, log = served(several, tmp_path / "data")
    assert code == 1 and "cluster.listen: must be set, because cluster 'plant' has 3 cells" in log
    code, log = served_with_links(several)
    assert code == 1 and "node 'n1' is missing in the list of nodes of cluster 'plant'" in log
    assert "run `quelea cluster node add`" in log
    put(nats, "$KV.plant-cluster.members", b"[7]")
    code, log = served_with_links(several)
    assert code == 1 and "the key 'members' of the bucket is malformed" in log
    refused(node(several, "list"), "the key 'members' of the bucket is malformed")
    assert not list((tmp_path / "data").glob("shard-*"))


def test_cells_that_no_node_has_served_are_not_exported(several, tmp_path):
    directory = tmp_path / "data"
    expected = "cell 0: the cluster has no messages to export: no node has served it yet"
    refused(cluster(several, "export", directory), expected)
    refused(cluster(several, "import", directory), "imports the export of such a cluster only")
    assert list(tmp_path.glob("data*")) == []


def test_cells_that_no_node_has_served_say_so(several):
    done(node(several, "add", "n1", "--link", "h1:7883"))
    shown = json.loads(done(cluster(several, "status", "--json")))
    assert [(one["node"], one["is_heard"]) for one in shown["nodes"]] == [("n1", False)]
    assert [(one["active"], one["lease"]) for one in shown["cells"]] == [(None, None)] * CELLS
    text = done(cluster(several, "status"))
    for number in range(CELLS):
        assert f"cell {number}: no node is active; no node has had the lease\n" in text
    refused(cluster(several, "switchover", "--cell", 0), "no active node answers")
    assert done(cluster(several, "drain", "n1")) == "'n1' is not active for any cell\n"
