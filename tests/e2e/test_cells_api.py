"""The management API of a cluster with several cells: any node answers for all of them."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from collectors import FakeCollector, attributes
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import PATIENCE_SECS, ROOT, eventually
from test_cells import BROKER, Client
from wire import Peer

sys.path.insert(0, str(ROOT / "tests/cluster"))

from lab import NODES, Lab  # noqa: E402
from test_cluster_engine import pytestmark  # noqa: E402, F401

CELLS = 6
NAMES = [f"node{node + 1}" for node in range(NODES)]
ADMINISTRATIVE_ACTION = 0x98
BANNED = 0x8A
# A cell that does not answer is waited for that long, and its node only once.
PARTIAL_SECS = 10


class ApiLab(Lab):
    """The same with an API at each node."""

    def broker_config(self, node):
        telemetry = f"""
[telemetry]
endpoint = "{self.collector.endpoint}"
metrics_interval_secs = 1
"""
        return super().broker_config(node) + '[api]\nlisten = "http"\n' + telemetry

    def token(self, node):
        return (self.directory / f"node{node + 1}" / "data" / "api.token").read_text().split()[0]

    def call(self, node, method, path, body=None, **query):
        """Status and answer."""
        query = {name: value for name, value in query.items() if value is not None}
        url = f"http://127.0.0.1:{self.http_ports[node]}/api/v1{path}"
        request = urllib.request.Request(
            f"{url}?{urllib.parse.urlencode(query)}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token(node)}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def get(self, node, path, **query):
        status, answer = self.call(node, "GET", path, **query)
        assert status == 200, answer
        return answer

    def rows(self, node, path, **query):
        """All pages, of cells that all answer."""
        rows, cursor = [], None
        while True:
            page = self.get(node, path, cursor=cursor, **query)
            assert "cells_missing" not in page, page
            rows += page["items"]
            cursor = page["cursor"]
            if cursor is None:
                return rows


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cells-api") / "lab"
    with ApiLab(directory, BROKER, shards=2, cells=CELLS) as lab:
        lab.collector = FakeCollector()
        lab.start()
        yield lab
        lab.collector.stop()


@pytest.fixture
def client(lab):
    made = []

    def make(*arguments, **options):
        made.append(Client(lab, *arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def names(prefix):
    """Enough client IDs for some in each cell."""
    return [f"{prefix}-{number}" for number in range(6 * CELLS)]


def test_a_list_has_each_client_once_at_any_node(lab, client):
    wanted = names("listed")
    for number, name in enumerate(wanted):
        client(number % NODES, name).subscribe(f"listed/{name}")
    for node in range(NODES):
        for limit in (None, 5):
            rows = lab.rows(node, "/clients", client_id="listed-", limit=limit)
            assert sorted(row["client_id"] for row in rows) == sorted(wanted)
        assert len(lab.get(node, "/clients", client_id="listed-", limit=7)["items"]) <= 7
        filters = [row["filter"] for row in lab.rows(node, "/subscriptions", client_id="listed-")]
        assert sorted(filters) == sorted(f"listed/{name}" for name in wanted)
        for name in wanted[:6]:
            assert lab.get(node, "/client", client_id=name)["connected"] is True
            own = lab.rows(node, "/client/subscriptions", client_id=name)
            assert [row["filter"] for row in own] == [f"listed/{name}"]
            receivers = lab.rows(node, "/topics/receivers", topic=f"listed/{name}")
            assert [row["client_id"] for row in receivers] == [name]
        broker = lab.get(node, "/broker")
        assert broker["connections"] >= len(wanted) and broker["shards"] == 2 * CELLS
        assert lab.call(node, "GET", "/client", client_id="nobody")[0] == 404
        assert lab.call(node, "GET", "/clients", cursor="9~")[0] == 400
        assert lab.call(node, "GET", "/clients", cursor="1~x")[0] == 400
        logs = lab.rows(node, "/logs")
        assert [row["shard"] for row in logs] == list(range(2 * CELLS))


def test_a_client_of_any_cell_is_disconnected_at_any_node(lab, client):
    for number, name in enumerate(names("kicked")[:12]):
        one = client(0, name)
        status, answer = lab.call(number % NODES, "POST", "/client/disconnect", client_id=name)
        assert status == 204, answer
        eventually(lambda one=one: one.ends, "the end of the connection")
        assert one.ends[0].value == ADMINISTRATIVE_ACTION
        one.paho.loop_stop()
        assert lab.call(1, "POST", "/client/disconnect", client_id="nobody")[0] == 404
    swept = [client(number % NODES, name) for number, name in enumerate(names("swept"))]
    status, answer = lab.call(2, "POST", "/disconnect", client_id="swept-")
    assert (status, answer) == (200, {"disconnected": len(swept)})
    for one in swept:
        eventually(lambda one=one: one.ends, "the end of the connection")
        one.paho.loop_stop()


def test_a_session_is_deleted_at_any_node(lab, client):
    for number, name in enumerate(names("purged")[:6]):
        client(0, name, kept=True).close()
        eventually(
            lambda name=name: not lab.get(1, "/client", client_id=name)["connected"], "its end"
        )
        assert lab.call(number % NODES, "DELETE", "/client", client_id=name)[0] == 204
        assert lab.call(1, "GET", "/client", client_id=name)[0] == 404


def test_what_the_api_publishes_anywhere_arrives_everywhere(lab, client):
    readers = [client(node, f"api-reader-{node}") for node in range(NODES)]
    for reader in readers:
        assert reader.subscribe("api/#") == 1
    wanted = []
    for number in range(12):
        body = {"topic": f"api/{number}", "payload": str(number), "qos": 1}
        status, answer = lab.call(number % NODES, "POST", "/publish", body)
        assert (status, answer["reason_code"]) == (200, 0), answer
        wanted.append(str(number))
    batch = [{"topic": f"api/batch/{number}", "payload": f"b{number}"} for number in range(12)]
    status, answer = lab.call(1, "POST", "/publish/batch", {"messages": batch})
    assert (status, answer["refused"], len(answer["results"])) == (200, 0, 12), answer
    wanted += [message["payload"] for message in batch]
    for reader in readers:
        assert sorted(reader.payloads(len(wanted))) == sorted(wanted)


def test_retained_messages_of_all_cells_are_listed_and_cleared(lab):
    topics = [f"keep/{number:02}/a" for number in range(24)]
    for number, topic in enumerate(topics):
        query = {"topic": topic}
        status, answer = lab.call(
            number % NODES, "PUT", "/retained/message", {"payload": "x"}, **query
        )
        assert status == 200, answer
    for node in range(NODES):
        rows = lab.rows(node, "/retained", filter="keep/#", limit=5)
        assert sorted(row["topic"] for row in rows) == topics
        assert lab.get(node, "/retained/message", topic=topics[node])["payload"] == "x"
        levels = lab.rows(node, "/topics", prefix="keep", limit=5)
        assert [row["level"] for row in levels] == [f"{number:02}" for number in range(24)]
        assert all(row["topics_below"] == 1 for row in levels)
    root = [row for row in lab.rows(1, "/topics") if row["level"] == "keep"]
    assert [row["topics_below"] for row in root] == [24], "cells add up"
    assert lab.call(0, "DELETE", "/retained/message", topic=topics[0])[0] == 204
    cursor, cleared = None, 0
    while True:
        status, page = lab.call(2, "DELETE", "/retained", filter="keep/#", limit=5, cursor=cursor)
        assert status == 200 and page["refused"] == 0, page
        cleared, cursor = cleared + page["cleared"], page["cursor"]
        if cursor is None:
            break
    assert cleared == 23 and lab.rows(0, "/retained", filter="keep/#") == []


def test_figures_are_those_of_all_cells(lab, client):
    for number, name in enumerate(names("counted")):
        client(number % NODES, name)

    def connections(node):
        totals = lab.get(node, "/totals")["series"]
        return [row["value"] for row in totals if row["name"] == "quelea_connections"]

    for node in range(NODES):
        assert connections(node) == [lab.get(node, "/broker")["connections"]]
        rows = lab.rows(node, "/limits")
        kinds = [(row["kind"], row["owner"], row["name"]) for row in rows]
        assert len(kinds) == len(set(kinds))
        used = {row["name"]: row["used"] for row in rows if row["kind"] == "broker"}
        assert used["limits.connections_max"] == connections(node)[0]
        memory = lab.get(node, "/memory")
        assert 0 < memory["client_bytes"] < memory["resident_bytes"]
        reasons = [(row["reason"], row["limit"]) for row in lab.rows(node, "/drops")]
        assert len(reasons) == len(set(reasons)) > 5
        assert [row for row in lab.rows(node, "/alarms") if row["severity"] == "critical"] == []
        history = lab.get(node, "/history", series="quelea_connections")
        for line in history["series"]:
            assert len(line["values"]) == len(history["times_ms"])


def refused(lab, node, client_id):
    with Peer(lab.mqtt_ports[node]) as peer:
        assert peer.connect(client_id=client_id)[1] == BANNED


def banned_everywhere(lab, name):
    for node in range(NODES):
        refused(lab, node, name)
        found = [row["who"] for row in lab.rows(node, "/bans")]
        assert name in found


def test_a_ban_holds_at_all_nodes(lab, client):
    for number, name in enumerate(names("banned")[:6]):
        one = client((number + 1) % NODES, name)
        body = {"kind": "client", "who": name, "for_secs": 3600}
        status, answer = lab.call(number % NODES, "POST", "/bans", body)
        assert status == 200, answer
        eventually(lambda one=one: one.ends, "the end of the connection")
        one.paho.loop_stop()
        banned_everywhere(lab, name)
        status, answer = lab.call((number + 2) % NODES, "DELETE", "/bans", kind="client", who=name)
        assert status == 204, answer
        client(number % NODES, name)
    name = "banned-for-a-time"
    client(0, name)
    assert lab.call(1, "POST", "/client/disconnect", client_id=name, ban_secs=600)[0] == 204
    banned_everywhere(lab, name)


def test_events_and_packets_of_all_cells_are_streamed_by_any_node(lab, client):
    def read(path, lines):
        url = f"http://127.0.0.1:{lab.http_ports[1]}/api/v1{path}"
        headers = {"Authorization": f"Bearer {lab.token(1)}"}
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECS) as answer:
            begun.release()
            for line in answer:
                lines.append(line.decode())
                if closing.is_set():
                    return

    begun, closing = threading.Semaphore(0), threading.Event()
    events, packets = [], []
    paths = [("/events?type=quelea.session.connected", events), ("/trace?topic=traced/%23", packets)]
    readers = [threading.Thread(target=read, args=it, daemon=True) for it in paths]
    for reader in readers:
        reader.start()
    for _ in readers:
        assert begun.acquire(timeout=PATIENCE_SECS)
    wanted = names("streamed")
    for number, name in enumerate(wanted):
        client(number % NODES, name).publish(f"traced/{name}", "x")

    def seen(lines):
        data = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
        found = [(row.get("data") or row).get("client_id") for row in data]
        return sorted(name for name in found if name and name.startswith("streamed-"))

    eventually(lambda: seen(events) == sorted(wanted), "an event of each client")
    eventually(lambda: seen(packets) == sorted(wanted), "a packet of each client")
    closing.set()


def test_spans_and_metrics_of_all_cells_are_sent(lab, client):
    trace = "0af7651916cd43dd8448eb211c80319c"
    readers = [client(number % NODES, name) for number, name in enumerate(names("spanned"))]
    for reader in readers:
        reader.subscribe("spanned/a")
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = ("traceparent", f"00-{trace}-b7ad6b7169203331-01")
    writer = client(0, "spanned-writer")
    writer.paho.publish("spanned/a", "x", 1, properties=properties)
    for reader in readers:
        assert reader.payloads(1) == ["x"]

    def sent():
        spans = [span for span in lab.collector.spans() if span.trace_id.hex() == trace]
        return [span for span in spans if span.name == "send"]

    eventually(lambda: len({span.span_id for span in sent()}) >= CELLS, "spans of each cell")

    def cells():
        points = lab.collector.metrics()["quelea_connections"].gauge.data_points
        return {attributes(point)["cell"] for point in points}

    eventually(lambda: "quelea_connections" in lab.collector.metrics() and cells(), "metrics")


def ctl(lab, node, *words):
    data = lab.directory / f"node{node + 1}" / "data"
    command = [BROKER, "ctl", "--data", data, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_ctl_shows_all_clients(lab, client):
    wanted = names("ctl")
    for number, name in enumerate(wanted):
        client(number % NODES, name)
    for node in range(NODES):
        ran = ctl(lab, node, "clients", "list", "--limit", "0")
        assert ran.returncode == 0, ran.stderr
        shown = {line.split()[0] for line in ran.stdout.splitlines()}
        assert shown.issuperset(wanted)
    for words in (["info"], ["alarms"], ["listeners"], ["retained", "list"], ["ban", "list"]):
        ran = ctl(lab, 2, *words)
        assert ran.returncode == 0, ran.stderr
    assert ctl(lab, 2, "clients", "kick", wanted[0]).returncode == 0


def test_the_cluster_is_shown_with_its_cells(lab):
    owners = lab.wait("an owner of each cell", lab.all_owners)
    for node in range(NODES):
        shown = lab.get(node, "/cluster")
        assert [cell["active"] for cell in shown["cells"]] == [NAMES[it] for it in owners]
        here = [cell["cell"] for cell in shown["cells"] if cell["role"] == "active"]
        assert here == [cell for cell in range(CELLS) if owners[cell] == node]
        assert [row["node"] for row in shown["nodes"]] == NAMES
        assert all(len(row["shards"]) == 2 * CELLS for row in shown["nodes"])


def test_settings_and_a_reload_are_of_the_node_and_its_cells(lab):
    status, answer = lab.call(1, "PUT", "/settings/sys.interval_secs", {"value": "1"})
    assert status == 200, answer
    assert ctl(lab, 1, "reload").returncode == 0
    status, answer = lab.call(1, "POST", "/reload")
    assert status == 200 and answer["complete"], answer
    assert {"passwords and keys", "settings", "access rules"} <= {it["name"] for it in answer["parts"]}
    assert lab.call(1, "DELETE", "/settings/sys.interval_secs")[0] == 200


def test_sys_topics_have_the_totals_of_the_cluster(lab, client):
    for node in range(NODES):
        status, answer = lab.call(node, "PUT", "/settings/sys.interval_secs", {"value": "1"})
        assert status == 200, answer
    wanted = names("sys")
    readers = [client(number % NODES, name) for number, name in enumerate(wanted)]
    for reader in readers:
        reader.subscribe("$SYS/broker/clients/connected", 0)
    total = lab.get(0, "/broker")["connections"]
    assert total >= len(wanted)
    for reader in readers:
        eventually(
            lambda reader=reader: any(int(it.payload) == total for it in reader.messages),
            "the total of all cells",
        )


def test_a_node_that_is_stopped_gives_a_page_that_names_its_cells(lab, client):
    owners = lab.wait("an owner of each cell", lab.all_owners)
    paused = owners[1]
    asked = next(node for node in range(NODES) if node != paused)
    cells = [cell for cell in range(CELLS) if owners[cell] == paused]
    process = lab.processes[NAMES[paused]]
    process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        page = lab.get(asked, "/clients", limit=1000)
        took = time.monotonic() - began
        sums = lab.get(asked, "/broker")
        assert took < PARTIAL_SECS, took
        # Another node may have taken some of them by now.
        assert set(page["cells_missing"]) <= set(cells) and page["cells_missing"]
        assert set(sums.get("cells_missing", [])) <= set(cells)
    finally:
        process.send_signal(signal.SIGCONT)
    lab.wait("an owner of each cell", lab.all_owners)
    eventually(lambda: "cells_missing" not in lab.get(asked, "/clients"), "whole pages")


def test_a_ban_survives_the_loss_of_a_node(lab):
    """The last test: one of the nodes is gone."""
    owners = lab.wait("an owner of each cell", lab.all_owners)
    victim = owners[0]
    others = [node for node in range(NODES) if node != victim]
    body = {"kind": "client", "who": "for-ever"}
    assert lab.call(others[0], "POST", "/bans", body)[0] == 200
    lab.processes.pop(NAMES[victim]).kill()
    lab.wait("other owners", lambda: all(it in others for it in lab.owners()) or None)
    for node in others:
        refused(lab, node, "for-ever")
    # The new owner may have the lease and not serve yet.
    remove = lambda: lab.call(others[1], "DELETE", "/bans", kind="client", who="for-ever")[0]  # noqa: E731
    eventually(lambda: remove() == 204, "the end of the ban")
    for node in others:
        with Peer(lab.mqtt_ports[node]) as peer:
            peer.accepted(client_id="for-ever")
