"""Statements of the standards that show only on a server with a certain configuration."""

import base64
import hashlib
import os
import socket
import struct

import pytest

from scram import ScramClient
from wire import (
    AUTH, CONNACK, DISCONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, Peer, ack, connect,
    fresh, packet, prefixed, properties_of, publish, subscribe, varint,
)

ANONYMOUS = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
"""


@pytest.fixture
def restricted(start):
    """Takes QoS 0 only, retains nothing, and wants short client ids."""
    return start(
        ANONYMOUS
        + """
        [limits]
        qos_max = 0
        retain_available = false
        wildcard_available = false
        shared_available = false
        subscription_ids_available = false
        client_id_bytes_max = 23
        packet_bytes_max = 1024
        keep_alive_max_secs = 60
        session_expiry_max_secs = 100
        """
    )


def connack_properties(broker, **options):
    with Peer(broker.port()) as peer:
        _, reason, rest = peer.connect(**options)
        assert reason == 0
        return dict(properties_of(rest))


def test_mqtt_3_2_2_9_maximum_qos_is_told(restricted):
    assert connack_properties(restricted)[0x24] == 0


def test_what_is_not_available_is_told(restricted):
    told = connack_properties(restricted, keep_alive=600, properties=b"\x11\x00\x00\x10\x00")
    assert told[0x25] == told[0x28] == told[0x29] == told[0x2A] == 0
    assert told[0x27] == 1024
    assert told[0x13] == 60
    assert told[0x11] == 100


def test_mqtt_3_2_2_10_any_qos_may_be_subscribed(restricted):
    topic = fresh()
    with Peer(restricted.port()) as peer:
        peer.accepted()
        for options in (0, 1, 2):
            peer.send(subscribe(topic, options))
            assert peer.expect(SUBACK)[-1] <= options
        peer.send(publish(topic, "x"))
        assert peer.message()[1] == b"x"


def test_mqtt_3_2_2_11_publish_above_the_maximum_qos_is_refused(restricted):
    for qos in (1, 2):
        with Peer(restricted.port()) as peer:
            peer.accepted().send(publish(fresh(), "x", qos=qos))
            peer.expect_disconnect(0x9B)


def test_mqtt_3_2_2_12_will_above_the_maximum_qos_is_refused(restricted):
    with Peer(restricted.port()) as peer:
        assert peer.connect(will=("w", "x", 1, False))[1] == 0x9B
        peer.expect_end()


def test_mqtt_3_2_2_13_retained_will_is_refused(restricted):
    with Peer(restricted.port()) as peer:
        assert peer.connect(will=("w", "x", 0, True))[1] == 0x9A
        peer.expect_end()


def test_mqtt_3_2_2_14_retained_publish_is_refused(restricted):
    with Peer(restricted.port()) as peer:
        peer.accepted().send(publish(fresh(), "x", retain=True))
        peer.expect_disconnect(0x9A)


def test_mqtt_3_2_2_15_packet_beyond_the_maximum_is_refused(restricted):
    with Peer(restricted.port()) as peer:
        peer.accepted()
        # The header alone is enough: nobody waits for the rest.
        peer.send(bytes([0x30]) + varint(5000))
        peer.expect_disconnect(0x95)


def test_mqtt311_3_8_3_2_wildcards_that_are_not_available_are_refused(restricted):
    for version, refused in ((4, 0x80), (5, 0xA2)):
        with Peer(restricted.port(), version) as peer:
            peer.accepted(client_id="w1")
            peer.send(subscribe("a/+", version=version))
            assert peer.expect(SUBACK)[-1] == refused


def test_shared_subscriptions_that_are_not_available_are_refused(restricted):
    with Peer(restricted.port()) as peer:
        peer.accepted().send(subscribe("$share/g/a"))
        assert peer.expect(SUBACK)[-1] == 0x9E


def test_subscription_identifiers_that_are_not_available_are_refused(restricted):
    with Peer(restricted.port()) as peer:
        peer.accepted().send(subscribe("a", properties=b"\x0b\x01"))
        got = peer.recv()
        assert got[0] in (SUBACK, DISCONNECT)
        assert (got[1][-1] if got[0] == SUBACK else got[1][0]) == 0xA1


def test_mqtt_3_1_3_8_rejected_client_id_is_told(restricted):
    with Peer(restricted.port()) as peer:
        assert peer.connect(client_id="x" * 24)[1] == 0x85
        peer.expect_end()


def test_mqtt311_3_1_3_9_rejected_client_id_is_told(restricted):
    with Peer(restricted.port(), 4) as peer:
        assert peer.connect(client_id="x" * 24)[:2] == (0, 2)
        peer.expect_end()


def test_mqtt311_3_2_2_6_no_connack_where_no_code_applies(restricted):
    """3.1.1 has no code for a malformed CONNECT."""
    with Peer(restricted.port(), 4) as peer:
        bad = bytearray(connect("c", version=4))
        bad[9] |= 1
        peer.send(bytes(bad))
        peer.expect_end()


def test_mqtt_3_1_2_21_server_keep_alive_is_the_one_that_counts(start):
    broker = start(ANONYMOUS + "[limits]\nkeep_alive_max_secs = 1\n")
    with Peer(broker.port()) as peer:
        _, reason, rest = peer.connect(keep_alive=600)
        assert reason == 0 and dict(properties_of(rest))[0x13] == 1
        peer.expect_disconnect(0x8D)


@pytest.fixture
def guarded(start, passwords):
    return start(
        """
        [[listeners]]
        url = "tcp://127.0.0.1:0"
        [auth]
        password_file = "{dir}/passwords"
        [access]
        acl_file = "{dir}/acl"
        """,
        {"passwords": passwords, "acl": "user anna\ntopic readwrite open/#\n"},
    )


def test_mqtt_3_1_4_2_wrong_password_is_told_and_closed(guarded):
    for password in ("wrong", ""):
        with Peer(guarded.port()) as peer:
            flags, reason, _ = peer.connect(user="anna", password=password)
            assert flags == 0 and reason in (0x86, 0x87)
            peer.expect_end()


def test_wrong_password_is_told_before_mqtt_5(guarded):
    with Peer(guarded.port(), 4) as peer:
        flags, code, _ = peer.connect(client_id="c", user="anna", password="wrong")
        assert flags == 0 and code in (4, 5)
        peer.expect_end()


def test_mqtt_3_1_4_6_nothing_is_processed_after_a_refusal(guarded):
    topic = fresh("open")
    with Peer(guarded.port()) as watcher, Peer(guarded.port()) as peer:
        watcher.accepted(user="anna", password="secret").subscribed(topic)
        peer.send(connect(user="anna", password="wrong"), publish(topic, "smuggled"))
        assert peer.expect(CONNACK)[1] in (0x86, 0x87)
        peer.expect_end()
        watcher.send(publish(topic, "legal"))
        assert watcher.message()[1] == b"legal"


def test_mqtt311_3_3_5_2_forbidden_publish_is_acknowledged_or_closed(guarded):
    with Peer(guarded.port(), 4) as peer:
        peer.accepted(client_id="c", user="anna", password="secret")
        peer.send(publish("closed/x", "x", qos=1, packet_id=7, version=4))
        got = peer.recv()
        assert got is None or got == (PUBACK, struct.pack(">H", 7))


def test_mqtt_4_3_3_9_packet_id_is_free_after_a_failed_pubrec(guarded):
    topic = fresh("open")
    with Peer(guarded.port()) as peer:
        peer.accepted(user="anna", password="secret").subscribed(topic)
        peer.send(publish("closed/x", "x", qos=2, packet_id=7))
        assert peer.expect(PUBREC)[:3] == struct.pack(">H", 7) + b"\x87"
        peer.send(publish(topic, "new", qos=2, packet_id=7))
        packets = [peer.recv()]
        while packets[-1][0] != PUBREC:
            packets.append(peer.recv())
        body = packets[-1][1]
        assert len(body) == 2 or body[2] < 0x80
        peer.send(ack(PUBREL, 7))
        while packets[-1][0] != PUBCOMP:
            packets.append(peer.recv())
        assert sorted(packet[0] for packet in packets) == [PUBLISH, PUBREC, PUBCOMP]


def test_mqtt_3_4_2_1_forbidden_publish_is_told(guarded):
    with Peer(guarded.port()) as peer:
        peer.accepted(user="anna", password="secret")
        peer.send(publish("closed/x", "x", qos=1, packet_id=7))
        assert peer.expect(PUBACK)[:3] == struct.pack(">H", 7) + b"\x87"


def test_mqtt_3_9_3_2_forbidden_subscription_is_told(guarded):
    for version, refused in ((4, 0x80), (5, 0x87)):
        with Peer(guarded.port(), version) as peer:
            peer.accepted(client_id="c", user="anna", password="secret")
            peer.send(subscribe("closed/x", version=version))
            assert peer.expect(SUBACK)[-1] == refused


# Enhanced authentication.

METHOD = b"SCRAM-SHA-256"


def auth_properties(data, method=METHOD):
    return b"\x15" + prefixed(method) + b"\x16" + prefixed(data)


def auth_packet(reason, properties):
    return packet(AUTH, bytes([reason]) + varint(len(properties)) + properties)


def begin(broker, user="anna", password="secret", extra=b""):
    """A CONNECT with the client's first message, and the server's challenge."""
    peer, scram = Peer(broker.port()), ScramClient(user, password)
    peer.send(connect(properties=auth_properties(scram.first()) + extra))
    body = peer.expect(AUTH)
    properties = dict(properties_of(body[1:]))
    return peer, scram, body[0], properties


def authenticate(broker, **options):
    """The whole exchange; returns the peer, its SCRAM state and the CONNACK's properties."""
    peer, scram, _, challenge = begin(broker, **options)
    peer.send(auth_packet(0x18, auth_properties(scram.final(challenge[0x16]))))
    body = peer.expect(CONNACK)
    assert body[1] == 0, f"refused with {body[1]:#x}"
    return peer, scram, dict(properties_of(body[2:]))


def expect_refusal(peer):
    """The server may say why in a CONNACK, and closes the connection."""
    got = peer.recv()
    if got is not None:
        assert got[0] == CONNACK and got[1][1] >= 0x80, got
        peer.expect_end()


def test_mqtt_4_12_0_2_challenge_is_an_auth_0x18(guarded):
    peer, _, reason, _ = begin(guarded)
    assert reason == 0x18
    peer.close()


def test_mqtt_3_15_2_1_reasons_of_an_auth_are_those_of_the_standard(guarded):
    peer, scram, reason, challenge = begin(guarded)
    assert reason in (0x00, 0x18, 0x19)
    # And a client that uses another is refused.
    peer.send(auth_packet(0x55, auth_properties(scram.final(challenge[0x16]))))
    expect_refusal(peer)


def test_mqtt_4_12_0_5_method_is_named_in_auth_and_connack(guarded):
    peer, scram, _, challenge = begin(guarded)
    assert challenge[0x15] == METHOD
    peer.send(auth_packet(0x18, auth_properties(scram.final(challenge[0x16]))))
    body = peer.expect(CONNACK)
    properties = dict(properties_of(body[2:]))
    assert body[1] == 0 and properties[0x15] == METHOD
    # The server has shown that it knows the password, too.
    scram.verify(properties[0x16])
    peer.close()


@pytest.mark.parametrize("user, password", [("anna", "wrong"), ("nobody", "secret")])
def test_mqtt_4_12_0_4_failed_authentication_is_closed(guarded, user, password):
    peer, scram, _, challenge = begin(guarded, user=user, password=password)
    peer.send(auth_packet(0x18, auth_properties(scram.final(challenge[0x16]))))
    assert peer.expect(CONNACK)[1] in (0x86, 0x87)
    peer.expect_end()


def test_mqtt_3_1_2_30_other_packets_before_the_connack_are_refused(guarded):
    peer, _, _, _ = begin(guarded)
    peer.send(publish("open/x", "too early"))
    expect_refusal(peer)


def test_mqtt_4_12_0_3_response_with_another_reason_is_refused(guarded):
    peer, scram, _, challenge = begin(guarded)
    peer.send(auth_packet(0x19, auth_properties(scram.final(challenge[0x16]))))
    expect_refusal(peer)


def test_mqtt_4_12_1_1_re_authentication_succeeds_on_the_open_connection(guarded):
    peer, _, _ = authenticate(guarded)
    scram = ScramClient("anna", "secret")
    peer.send(auth_packet(0x19, auth_properties(scram.first())))
    body = peer.expect(AUTH)
    assert body[0] == 0x18
    challenge = dict(properties_of(body[1:]))
    peer.send(auth_packet(0x18, auth_properties(scram.final(challenge[0x16]))))
    body = peer.expect(AUTH)
    assert (body[0] if body else 0) == 0
    scram.verify(dict(properties_of(body[1:]))[0x16])
    peer.ping()
    peer.close()


def test_mqtt_4_12_1_1_re_authentication_with_another_method_is_refused(guarded):
    peer, _, _ = authenticate(guarded)
    peer.send(auth_packet(0x19, auth_properties(b"n,,n=anna,r=x", method=b"OTHER")))
    peer.expect_disconnect(0x82, 0x87, 0x8C)


def test_mqtt_4_12_1_2_failed_re_authentication_is_closed(guarded):
    peer, _, _ = authenticate(guarded)
    scram = ScramClient("anna", "wrong")
    peer.send(auth_packet(0x19, auth_properties(scram.first())))
    challenge = dict(properties_of(peer.expect(AUTH)[1:]))
    peer.send(auth_packet(0x18, auth_properties(scram.final(challenge[0x16]))))
    peer.expect_disconnect(0x86, 0x87)


def test_re_authentication_as_another_user_is_refused(guarded):
    peer, _, _ = authenticate(guarded)
    scram = ScramClient("bruno", "geheim")
    peer.send(auth_packet(0x19, auth_properties(scram.first())))
    challenge = dict(properties_of(peer.expect(AUTH)[1:]))
    peer.send(auth_packet(0x18, auth_properties(scram.final(challenge[0x16]))))
    peer.expect_disconnect(0x87)


def test_mqtt_3_15_2_2_auth_fits_the_packet_size_of_the_client(guarded):
    check_auth_size(guarded)


def test_mqtt_3_15_2_3_auth_fits_the_packet_size_of_the_client(guarded):
    check_auth_size(guarded)


def check_auth_size(broker):
    """The challenge itself needs some 120 bytes; a reason string or user property would not fit."""
    limit = b"\x27" + struct.pack(">I", 160)
    peer, scram, _ = authenticate(broker, extra=limit)
    peer.send(auth_packet(0x19, auth_properties(ScramClient("anna", "secret").first())))
    body = peer.expect(AUTH)
    assert 2 + len(body) <= 160
    assert not {0x1F, 0x26} & dict(properties_of(body[1:])).keys()
    peer.close()


# WebSocket.

OPCODE_TEXT, OPCODE_BINARY, OPCODE_CLOSE = 1, 2, 8


class WebSocket:
    """The client's side of RFC 6455, as little of it as MQTT needs."""

    def __init__(self, port, protocols="mqtt", path="/mqtt"):
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        key = base64.b64encode(os.urandom(16)).decode()
        offer = f"Sec-WebSocket-Protocol: {protocols}\r\n" if protocols else ""
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Version: 13\r\n{offer}\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            more = self.socket.recv(1)
            assert more, f"the server closed the connection after {head}"
            head += more
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {
            name.strip().lower(): value.strip()
            for name, value in (line.split(":", 1) for line in lines[1:] if ":" in line)
        }
        magic = key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.expected_accept = base64.b64encode(hashlib.sha1(magic.encode()).digest()).decode()

    def send(self, payload, opcode=OPCODE_BINARY, fin=True):
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
        length = len(payload)
        size = bytes([0x80 | length]) if length < 126 else b"\xfe" + struct.pack(">H", length)
        self.socket.sendall(bytes([(0x80 if fin else 0) | opcode]) + size + mask + masked)

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                return None
            data += more
        return data

    def recv(self):
        """(opcode, payload) of the next frame, or None at the end."""
        head = self._exactly(2)
        if head is None:
            return None
        assert not head[1] & 0x80, "a server does not mask"
        length = head[1] & 0x7F
        if length == 126:
            length = struct.unpack(">H", self._exactly(2))[0]
        return head[0] & 0x0F, self._exactly(length) if length else b""


@pytest.fixture
def web(start):
    return start('[[listeners]]\nurl = "ws://127.0.0.1:0/mqtt"\nallow_anonymous = true\n')


def test_mqtt_6_0_0_1_text_frames_close_the_connection(web):
    ws = WebSocket(web.port("ws"))
    ws.send(connect("c"), opcode=OPCODE_TEXT)
    got = ws.recv()
    while got is not None:
        assert got[0] == OPCODE_CLOSE, f"{got} came for a text frame"
        assert struct.unpack(">H", got[1][:2])[0] == 1003
        got = ws.recv()


def test_mqtt311_6_0_0_1_text_frames_close_an_established_connection(web):
    ws = WebSocket(web.port("ws"))
    ws.send(connect("c", version=4))
    assert ws.recv() == (OPCODE_BINARY, b"\x20\x02\x00\x00")
    ws.send(packet(0xC0), opcode=OPCODE_TEXT)
    got = ws.recv()
    while got is not None:
        assert got[0] == OPCODE_CLOSE
        got = ws.recv()


def check_frames(broker, version):
    ws = WebSocket(broker.port("ws"))
    topic = fresh()
    data = (
        connect("c" + str(version), version=version)
        + subscribe(topic, version=version)
        + publish(topic, "x" * 300, version=version)
    )
    # Packets in pieces of three bytes, then many packets in one frame.
    for at in range(0, len(data), 3):
        ws.send(data[at : at + 3])
    ws.send(packet(0xC0) * 3)
    received = b""
    while received.count(b"\xd0\x00") < 3:
        opcode, payload = ws.recv()
        assert opcode == OPCODE_BINARY
        received += payload
    assert received[0] == CONNACK and b"x" * 300 in received


def test_mqtt_6_0_0_2_packets_may_span_frames(web):
    check_frames(web, 5)


def test_mqtt311_6_0_0_2_packets_may_span_frames(web):
    check_frames(web, 4)


def test_mqtt_6_0_0_2_fragmented_messages_are_put_together(web):
    ws = WebSocket(web.port("ws"))
    data = connect("c")
    ws.send(data[:5], fin=False)
    ws.send(data[5:9], opcode=0, fin=False)
    ws.send(data[9:], opcode=0)
    opcode, payload = ws.recv()
    assert (opcode, payload[0]) == (OPCODE_BINARY, CONNACK)


def check_subprotocol(broker):
    ws = WebSocket(broker.port("ws"), protocols="graphql, mqtt")
    assert ws.status == 101
    assert ws.headers["sec-websocket-protocol"] == "mqtt"
    assert ws.headers["sec-websocket-accept"] == ws.expected_accept


def test_mqtt_6_0_0_4_subprotocol_is_mqtt(web):
    check_subprotocol(web)


def test_mqtt311_6_0_0_4_subprotocol_is_mqtt(web):
    check_subprotocol(web)


def test_mqtt_6_0_0_3_client_without_the_subprotocol_is_not_upgraded(web):
    assert WebSocket(web.port("ws"), protocols="graphql").status == 400
    assert WebSocket(web.port("ws"), protocols=None).status == 400


def test_websocket_on_another_path_is_not_found(start):
    config = """
    [[listeners]]
    url = "ws://127.0.0.1:0"
    allow_anonymous = true
    [listeners.websocket]
    path = "/mqtt"
    """
    broker = start(config)
    assert WebSocket(broker.port("ws"), path="/elsewhere").status == 404
    assert WebSocket(broker.port("ws"), path="/mqtt").status == 101
