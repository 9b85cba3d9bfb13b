"""Bridges to remotes that do not accept a message: they close the connection, or answer with an
error code."""

import json
import socket
from contextlib import contextmanager

import pytest

from bridges import FIXED, bridge_to, free_port, lag
from broker import PATIENCE_SECS, eventually
from wire import (
    CONNACK, DISCONNECT, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, Peer, ack,
    packet, publish,
)

CLOSES = 3
NOT_NOW = 0x97
BAD = b"bad"


@contextmanager
def server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_SECS)
        yield listener


class Remote:
    """One connection of a bridge. Messages that it has taken are in `got`."""

    def __init__(self, listener, version, present):
        self.peer, self.version = Peer(listener.accept()[0], version), version
        assert self.peer.recv()[0] == 0x10
        flags = bytes([present, 0]) + (b"\0" if version == 5 else b"")
        self.peer.send(packet(CONNACK, flags))

    def next_message(self):
        """(payload, packet id, qos) of the next PUBLISH; None: the connection has ended."""
        while (got := self.peer.recv()) is not None:
            first, body = got
            if first == 0x82:
                properties = b"\0" if self.version == 5 else b""
                self.peer.send(packet(SUBACK, body[:2] + properties + b"\1"))
            elif first == 0xC0:
                self.peer.send(packet(PINGRESP))
            elif first == PUBREL:
                self.peer.send(ack(PUBCOMP, int.from_bytes(body[:2])))
            elif first & 0xF0 == PUBLISH:
                qos, length = first >> 1 & 3, int.from_bytes(body[:2])
                at = 2 + length
                packet_id = int.from_bytes(body[at : at + 2]) if qos else 0
                return body.rsplit(b":", 1)[1], packet_id, qos
        return None

    def accept(self, packet_id, qos, reason=0):
        if qos:
            kind = PUBACK if qos == 1 else PUBREC
            more = bytes([reason]) if reason else b""
            self.peer.send(packet(kind, packet_id.to_bytes(2) + more))

    def close(self):
        self.peer.close()


def bridge(start, port, protocol, **keys):
    topics = ["t out 2"]
    own = bridge_to(port, topics, protocol=protocol, notifications=False, **keys)
    return start(FIXED.format(free_port()) + own + '[api]\nlisten = "http"\n')


def published(broker, payloads, qos=1):
    with Peer(broker.port(), 4).accepted(client_id="one") as peer:
        for number, payload in enumerate(payloads, 1):
            peer.send(publish("t", b"m:" + payload, qos, number, version=4))
            peer.expect(PUBACK if qos == 1 else PUBREC)


def refused(broker, reason):
    name = 'quelea_bridge_refused_total{bridge="cloud",direction="out",reason="%s"}'
    return broker.metrics()[name % reason]


@pytest.mark.parametrize("how", ["end", "reset", "disconnect"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_a_remote_closes_at_is_given_up_after_three_times(start, how, qos):
    version = 5 if how == "disconnect" else 4
    with server() as listener:
        broker = bridge(start, listener.getsockname()[1], "5" if version == 5 else "3.1.1")
        payloads = [b"0", BAD, *[f"{number}".encode() for number in range(1, 30)]]
        published(broker, payloads, qos)
        got, closes, present = [], 0, 0
        while len(got) < len(payloads) - 1:
            remote = Remote(listener, version, present)
            present = 1
            while (message := remote.next_message()) is not None:
                payload, packet_id, of_message = message
                if payload == BAD:
                    closes += 1
                    if how == "disconnect":
                        remote.peer.send(packet(DISCONNECT, b"\x95\0"))
                    if how == "reset":
                        remote.peer.stream.setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                        )
                    break
                # A message that was answered just before the end may come again.
                if payload not in got:
                    got.append(payload)
                remote.accept(packet_id, of_message)
                if len(got) == len(payloads) - 1:
                    break
            remote.close()
        assert got == [payload for payload in payloads if payload != BAD]
        # One more if the last answer before the first end was lost.
        assert CLOSES <= closes <= CLOSES + 1
        eventually(lambda: refused(broker, "closes") == 1, "the count")


def test_closes_for_other_reasons_give_up_no_message(start):
    """A remote that is shut down, or that closes before it has answered anything."""
    with server() as listener:
        broker = bridge(start, listener.getsockname()[1], "5")
        published(broker, [b"0"])
        Remote(listener, 5, 0).close()
        for _ in range(CLOSES + 1):
            remote = Remote(listener, 5, 1)
            assert remote.next_message()[0] == b"0"
            remote.peer.send(packet(DISCONNECT, b"\x8b\0"))
            remote.close()
        remote = Remote(listener, 5, 1)
        payload, packet_id, qos = remote.next_message()
        assert payload == b"0"
        remote.accept(packet_id, qos)
        eventually(lambda: lag(broker) == 0, "the lag")
        remote.close()
        assert refused(broker, "closes") == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_the_remote_has_no_room_for_is_sent_again(start, qos):
    with server() as listener:
        broker = bridge(start, listener.getsockname()[1], "5")
        published(broker, [b"0", b"1", b"2"], qos)
        remote = Remote(listener, 5, 0)
        got = []
        while len(got) < 5:
            payload, packet_id, of_message = remote.next_message()
            got.append(payload)
            is_refused = payload == b"1" and got.count(b"1") < 3
            remote.accept(packet_id, of_message, NOT_NOW if is_refused else 0)
        # The others are not kept back.
        assert got == [b"0", b"1", b"2", b"1", b"1"]
        if qos == 1:
            eventually(lambda: lag(broker) == 0, "the lag")
        assert refused(broker, "rejected") == refused(broker, "exhausted") == 0
        remote.close()


@pytest.mark.parametrize("reason", [0x87, 0x90, 0x99])
def test_a_message_that_the_remote_will_never_take_is_skipped(start, reason):
    with server() as listener:
        broker = bridge(start, listener.getsockname()[1], "5")
        published(broker, [BAD, b"1"])
        remote = Remote(listener, 5, 0)
        for expected, answer in ((BAD, reason), (b"1", 0)):
            payload, packet_id, qos = remote.next_message()
            assert payload == expected
            remote.accept(packet_id, qos, answer)
        eventually(lambda: lag(broker) == 0, "the lag")
        eventually(lambda: refused(broker, "rejected") == 1, "the count of refused messages")
        remote.close()


def test_the_qos_is_lowered_to_that_of_the_remote(start):
    for qos_max in (0, 1):
        with server() as listener:
            broker = bridge(start, listener.getsockname()[1], "5")
            published(broker, [b"0", b"1"], 2)
            peer = Peer(listener.accept()[0], 5)
            assert peer.recv()[0] == 0x10
            peer.send(packet(CONNACK, b"\0\0\2\x24" + bytes([qos_max])))
            remote = Remote.__new__(Remote)
            remote.peer, remote.version = peer, 5
            for expected in (b"0", b"1"):
                payload, packet_id, qos = remote.next_message()
                assert (payload, qos) == (expected, qos_max)
                remote.accept(packet_id, qos)
            eventually(lambda: lag(broker) == 0, "the lag")
            remote.close()
            assert json.dumps(broker.log).count("message not relayed") == 0
