"""A cluster of format 1, with a stream for each shard, is carried over into one of this format."""

import base64
import json
import socket
import struct

from broker import PATIENCE_SECS
from test_cluster_directory import (  # noqa: F401
    check,
    cluster,
    done,
    fill,
    nats,
    with_cluster,
)
from test_cluster_misfits import crc32c, made, put, served

SHARDS = 2
# In front of the content, and in front of the bytes of each piece: of this format.
HEAD_BYTES, PIECE_BYTES = 56, 15
# The former ends with the number of the cell, which format 1 does not have.
OLD_HEAD_BYTES = 54
NUMBER_AT = 38
CLAIM, PIECES = 1, 2


def ask(url, call, question=None):
    """A call of the JetStream API."""
    host, port = url.removeprefix("nats://").rsplit(":", 1)
    body = json.dumps(question).encode() if question else b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECS) as peer:
        lines = peer.makefile("rb")
        assert lines.readline().startswith(b"INFO")
        begin = f'CONNECT {{"verbose":false}}\r\nSUB answers 1\r\nPUB $JS.API.{call} answers '
        peer.sendall(begin.encode() + f"{len(body)}\r\n".encode() + body + b"\r\n")
        head = lines.readline().split()
        assert head[0] == b"MSG", head
        answer = json.loads(lines.read(int(head[-1])))
    assert "error" not in answer, answer
    return answer


def stored(url, stream, question):
    return base64.b64decode(ask(url, f"STREAM.MSG.GET.{stream}", question)["message"]["data"])


def messages(url, stream):
    state = ask(url, f"STREAM.INFO.{stream}")["state"]
    numbers = range(state["first_seq"], state["last_seq"] + 1)
    return [stored(url, stream, {"seq": number}) for number in numbers]


def pieces(content):
    """Shard, and the piece as format 1 has it."""
    while content:
        tag, shard, segment, offset, count = struct.unpack_from("<BHIII", content)
        end = PIECE_BYTES + count
        piece = struct.pack("<BIII", tag, segment, offset, count) + content[PIECE_BYTES:end]
        yield shard, piece
        content = content[end:]


def old_message(head, number, kind, count, content):
    body = bytearray(head[:OLD_HEAD_BYTES])
    body[2:6] = struct.pack("<BBH", 1, kind, count)
    body[NUMBER_AT : NUMBER_AT + 8] = struct.pack("<Q", number)
    body += content
    return bytes(body) + struct.pack("<I", crc32c(body))


def old_streams(stream):
    """The messages of each shard, as format 1 would have appended them."""
    found, numbers = [[] for _ in range(SHARDS)], [0] * SHARDS
    for body in stream:
        head, content = body[:HEAD_BYTES], body[HEAD_BYTES:-4]
        if head[3] == CLAIM:
            numbers = [0] * SHARDS
            for messages_of_shard in found:
                messages_of_shard.append(old_message(head, 0, CLAIM, 0, content))
            continue
        for shard, piece in pieces(content):
            numbers[shard] += 1
            found[shard].append(old_message(head, numbers[shard], PIECES, 1, piece))
    return found


def make_old(url):
    """The cluster 'plant' becomes one of format 1."""
    streams = old_streams(messages(url, "plant-cell-000"))
    for shard, bodies in enumerate(streams):
        name, subject = f"plant-shard-{shard:03}", f"quelea.plant.log.{shard:03}"
        ask(url, f"STREAM.CREATE.{name}", {"name": name, "subjects": [subject], "storage": "file"})
        for body in bodies:
            put(url, subject, body)
    ask(url, "STREAM.DELETE.plant-cell-000")
    key = "$KV.plant-cluster.cluster"
    record = json.loads(stored(url, "KV_plant-cluster", {"last_by_subj": key}))
    put(url, key, json.dumps({**record, "format": 1}).encode())


def test_a_cluster_of_format_1_is_carried_over(nats, start, tmp_path):  # noqa: F811
    config = made(tmp_path, with_cluster(nats, "n1"))
    node = start(with_cluster(nats, "n1"))
    fill(node)
    node.terminate()
    assert node.wait() == 0
    make_old(nats)
    code, log = served(config, node.data)
    assert code == 1 and "the cluster has format 1" in log and "quelea cluster export" in log
    exported = tmp_path / "exported"
    done(cluster(config, "export", exported))
    other = with_cluster(nats, "n1").replace('"plant"', '"works"')
    config = made(tmp_path, other, "works.toml")
    done(cluster(config, "import", exported))
    check(start(other))
