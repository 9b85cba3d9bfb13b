"""Nodes that do not fit their cluster: another cluster's data, other settings, newer formats."""

import json
import socket
import struct
import subprocess
import urllib.error
import urllib.request

import pytest

from broker import PATIENCE_SECS, QUELEA, eventually
from test_cluster_directory import (  # noqa: F401
    Standby,
    check,
    cluster,
    done,
    fill,
    nats,
    shown,
    with_cluster,
)

ACCEPT = ("--allow-unreplicated", "--allow-unsynced")


def made(tmp_path, config, name="init.toml"):
    """A cluster as the configuration has it, and the file."""
    path = tmp_path / name
    path.write_text(config)
    done(cluster(path, "init", *ACCEPT))
    return path


def put(url, subject, content):
    """Publishes to NATS, which stores it in the stream that has the subject."""
    host, port = url.removeprefix("nats://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECS) as peer:
        lines = peer.makefile("rb")
        assert lines.readline().startswith(b"INFO")
        begin = f'CONNECT {{"verbose":false}}\r\nPUB {subject} {len(content)}\r\n'
        peer.sendall(begin.encode() + content + b"\r\nPING\r\n")
        assert lines.readline() == b"PONG\r\n"


def served(config, data):
    """The end of a node that is refused: its exit code and its log."""
    command = [QUELEA, "serve", f"--config={config}", f"--data={data}", "--http=127.0.0.1:0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECS)
    return ran.returncode, ran.stderr


def content_of(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def crc32c(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def message_of(version):
    body = b"QJ" + bytes([version, 1, 0, 0]) + bytes(50) + b"n9"
    return body + struct.pack("<I", crc32c(body))


def is_ready(node):
    """What a standby answers to a load balancer."""
    def is_http(event):
        return event["message"] == "listening as a standby" and event["url"].startswith("http")

    try:
        urllib.request.urlopen(node.wait_for_log(is_http)["url"] + "/readyz")
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False
    return True


@pytest.fixture
def standby():
    """Starts nodes that nobody waits for to be ready."""
    nodes = []

    def begin(config, **others):
        nodes.append(Standby(config, **others))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.stop()


def test_the_data_of_another_cluster_is_refused_and_left_as_it_is(nats, start, tmp_path):
    made(tmp_path, with_cluster(nats, "n1"))
    first = start(with_cluster(nats, "n1"))
    fill(first)
    first.kill()
    other = with_cluster(nats, "n1").replace('"plant"', '"works"')
    config = made(tmp_path, other, "works.toml")
    owner = start(other)
    before = content_of(first.data)
    code, log = served(config, first.data)
    assert code == 1
    assert "is the local copy of another cluster" in log and "use another data directory" in log
    # The token of the API is the other cluster's, and would be replaced by a node that is let in.
    assert content_of(first.data) == before
    owner.kill()
    check(start(with_cluster(nats, "n1"), data=first.data))


def test_streams_of_another_cluster_are_not_served(nats, start, standby, tmp_path):
    made(tmp_path, with_cluster(nats, "n1"))
    first = start(with_cluster(nats, "n1"))
    fill(first)
    first.kill()
    record = {"format": 2, "id": "ab" * 16, "shards": 2, "segment_bytes": 67108864}
    put(nats, "$KV.plant-cluster.cluster", json.dumps(record).encode())
    config = tmp_path / "init.toml"
    code, log = served(config, first.data)
    assert code == 1 and "is the local copy of another cluster" in log
    node = standby(with_cluster(nats, "n2"))
    told = node.wait_for_log(lambda event: "cannot become active" in event["message"])
    assert "is of another cluster" in told["detail"]
    assert not is_ready(node)


def test_a_node_with_other_settings_says_so_and_takes_over(nats, start, standby, tmp_path):
    made(tmp_path, with_cluster(nats, "n1"))
    active = start(with_cluster(nats, "n1"))
    fill(active)
    other = with_cluster(nats, "n1").replace("shards = 2", "shards = 5")
    other = other.replace('name = "blue"', 'name = "blue"\nconnections_max = 7')
    node = standby(other)
    ignored = node.wait_for_log(lambda event: "server.shards is ignored" in event["message"])
    assert (ignored["configured"], ignored["shards"]) == (5, 2)
    for one in (active, node):
        for what in ("has the same name", "has other settings of durability or namespaces"):
            one.wait_for_log(lambda event, what=what: what in event["message"])
    node.wait_for_log(lambda event: event["message"].startswith("caught up"))
    active.kill()
    node.wait_for_log(lambda event: event["message"] == "ready")
    node.urls = [event["url"] for event in node.log if event["message"] == "listening"]
    check(node)


def test_messages_of_a_newer_version_stop_every_node_and_lose_nothing(
    nats, start, standby, tmp_path
):
    config = made(tmp_path, with_cluster(nats, "n1"))
    active = start(with_cluster(nats, "n1"))
    fill(active)
    active.kill()
    last = shown(config)["streams"][0]["last"]
    put(nats, "quelea.plant.cell.000", message_of(3))
    eventually(lambda: shown(config)["streams"][0]["last"] == last + 1, "the message")
    old = standby(with_cluster(nats, "n1"), data=active.data)
    empty = standby(with_cluster(nats, "n2"))
    for node in (old, empty):
        told = node.wait_for_log(lambda event: "cannot become active" in event["message"])
        assert f"message {last + 1}: unknown version 3" in told["detail"]
        assert "use a newer one" in told["detail"]
        assert not is_ready(node)
    assert shown(config)["streams"][0]["last"] == last + 1


def test_a_lease_of_a_newer_version_is_not_taken(nats, start, standby, tmp_path):
    config = made(tmp_path, with_cluster(nats, "n1"))
    put(nats, "$KV.plant-cluster.lease", b'{"format":2}')
    node = standby(with_cluster(nats, "n1"))

    def detail():
        return [row["detail"] for row in shown(config)["nodes"]]

    eventually(lambda: any("use a newer one" in text for text in detail()), "the reason")
    assert not is_ready(node)


def test_a_newer_format_of_the_cluster_is_refused(nats, tmp_path):
    config = made(tmp_path, with_cluster(nats, "n1"))
    put(nats, "$KV.plant-cluster.cluster", b'{"format":4,"name":"plant"}')
    code, log = served(config, tmp_path / "data")
    assert code == 1 and "the cluster has format 4" in log and "use a newer one" in log
    again = cluster(config, "init", *ACCEPT)
    assert again.returncode == 1 and "use a newer one" in again.stderr


def test_a_cluster_of_the_older_format_is_refused_with_what_to_do(nats, tmp_path):
    config = made(tmp_path, with_cluster(nats, "n1"))
    record = {"format": 1, "id": "ab" * 16, "shards": 2, "segment_bytes": 67108864}
    put(nats, "$KV.plant-cluster.cluster", json.dumps(record).encode())
    code, log = served(config, tmp_path / "data")
    assert code == 1 and "the cluster has format 1" in log
    assert "quelea cluster export" in log and "quelea cluster import" in log


def test_messages_of_the_older_version_are_refused_with_what_to_do(nats, standby, tmp_path):
    config = made(tmp_path, with_cluster(nats, "n1"))
    put(nats, "quelea.plant.cell.000", message_of(1))
    node = standby(with_cluster(nats, "n1"))
    told = node.wait_for_log(lambda event: "cannot become active" in event["message"])
    assert "version 1" in told["detail"] and "quelea cluster export" in told["detail"]
    assert shown(config)["streams"][0]["last"] == 1
    assert not is_ready(node)
