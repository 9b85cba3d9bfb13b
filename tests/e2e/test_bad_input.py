"""Bad input ends in the answer the clause asks for and a line in the log, and hurts nobody else."""

import random
import socket

import pytest

from broker import PATIENCE_SECS
from wire import Peer, connect, fresh, packet, publish, subscribe, varint


@pytest.fixture
def bystander(plain):
    """A client that must go on as if nothing happened."""
    topic = fresh("bystander")
    with Peer(plain.port()) as peer:
        peer.accepted().subscribed(topic)
        yield peer
        peer.send(publish(topic, "still here"))
        assert peer.message()[1] == b"still here"


def told(broker, peer_address):
    return broker.wait_for_log(lambda event: peer_address in str(event))


def address(peer):
    return "%s:%d" % peer.stream.getsockname()


def test_byte_by_byte(plain, bystander):
    topic = fresh()
    with Peer(plain.port()) as peer:
        for byte in connect("slow") + subscribe(topic) + publish(topic, "slow but good"):
            peer.send(bytes([byte]))
        peer.expect(0x20)
        peer.expect(0x90)
        assert peer.message()[1] == b"slow but good"


@pytest.mark.parametrize(
    "name, bytes_, reasons, clause",
    [
        ("QoS 3", b"\x36\x06\x00\x01a\x00\x01\x00", (0x81,), "MQTT-3.3.1-4"),
        ("packet id 0", packet(0x82, b"\0\0\0\0\1a\0"), (0x81, 0x82), "MQTT-2.2.1-3"),
        ("reserved flags", b"\xc1\x00", (0x81,), "MQTT-2.1.3-1"),
        ("wildcard topic", publish("a/#"), (0x81, 0x90), "MQTT-3.3.2-2"),
        ("bad UTF-8", publish("x", properties=b"\x03\x00\x01\xff"), (0x81,), "MQTT-1.5.4-1"),
        ("cut packet", packet(0x30, b"\x00\x09a"), (0x81,), "MQTT-"),
        ("no such type", b"\x00\x00", (0x81, 0x82), "MQTT-"),
        ("no filter", packet(0x82, b"\0\1\0"), (0x82, 0x81), "MQTT-3.8.3-2"),
    ],
)
def test_malformed_packets(plain, bystander, name, bytes_, reasons, clause):
    client, seen = fresh("bad").replace("/", "-"), len(plain.log)
    with Peer(plain.port()) as peer:
        peer.accepted(client_id=client)
        where = address(peer)
        peer.send(bytes_)
        peer.expect_disconnect(*reasons)
    event = plain.wait_for_log(lambda event: where in str(event) and clause in str(event), seen)
    assert client in str(event), name


def test_malformed_packets_of_older_clients_are_told_in_the_log(plain, bystander):
    with Peer(plain.port(), 4) as peer:
        peer.accepted(client_id=fresh("bad").replace("/", "-"))
        where = address(peer)
        peer.send(b"\x36\x05\x00\x01a\x00\x01")
        peer.expect_end()
    assert "MQTT-3.3.1-4" in str(
        plain.wait_for_log(lambda event: where in str(event) and "MQTT-" in str(event))
    )


def test_no_mqtt_at_all(plain, bystander):
    for bytes_ in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\0" * 600,
                   b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 4096, b"\xff" * 4096):
        with Peer(plain.port()) as peer:
            where = address(peer)
            peer.send(bytes_)
            peer.expect_end()
        told(plain, where)


def test_oversized_packet_is_refused_by_its_header(plain, bystander):
    with Peer(plain.port()) as peer:
        peer.accepted().send(b"\x30" + varint(200_000_000))
        peer.expect_disconnect(0x95)
    with Peer(plain.port()) as peer:
        peer.send(b"\x10" + varint(200_000_000))
        got = peer.recv()
        assert got is None or got[1][1] in (0x81, 0x95)


@pytest.mark.parametrize(
    "bytes_, clause",
    [(b"\x30\xff\xff\xff\xff\x01", "MQTT-"), (connect("again"), "MQTT-3.1.0-2")],
    ids=["a length of five bytes", "a second CONNECT"],
)
def test_what_may_end_in_silence_is_told_in_the_log(plain, bystander, bytes_, clause):
    with Peer(plain.port()) as peer:
        peer.accepted()
        where = address(peer)
        peer.send(bytes_)
        got = peer.recv()
        assert got is None or got[1][0] in (0x81, 0x82)
    plain.wait_for_log(lambda event: where in str(event) and clause in str(event))


def test_a_flood_of_garbage(plain, bystander):
    dice = random.Random(4711)
    for _ in range(200):
        with Peer(plain.port()) as peer:
            try:
                if dice.random() < 0.5:
                    peer.accepted()
                peer.send(dice.randbytes(dice.randrange(1, 2000)))
                peer.stream.shutdown(socket.SHUT_WR)
                while peer.recv() is not None:
                    pass
            except (ConnectionError, TypeError):
                pass


def test_a_flood_of_mutated_packets(plain, bystander):
    """Good conversations with a few bytes changed: the end of the connection, or good packets."""
    dice = random.Random(815)
    for _ in range(300):
        topic = fresh("flood")
        good = connect(f"m{dice.randrange(1000)}") + subscribe(topic, 1)
        good += publish(topic, "payload", qos=1) + packet(0xC0) + packet(0xE0)
        bad = bytearray(good)
        for _ in range(dice.randrange(1, 4)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        with Peer(plain.port()) as peer:
            try:
                peer.send(bytes(bad))
                peer.stream.shutdown(socket.SHUT_WR)
                while peer.recv() is not None:
                    pass
            except (ConnectionError, TypeError):
                pass


def test_connections_that_never_say_anything(plain, bystander):
    silent = [
        socket.create_connection(("127.0.0.1", plain.port()), PATIENCE_SECS) for _ in range(100)
    ]
    with Peer(plain.port()) as peer:
        peer.accepted()
        peer.ping()
    for stream in silent:
        stream.close()


def test_a_connection_reset_is_no_more_than_that(plain, bystander):
    for _ in range(50):
        with Peer(plain.port()) as peer:
            peer.accepted()
            linger = socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
            peer.stream.setsockopt(*linger)
    assert plain.process.poll() is None
