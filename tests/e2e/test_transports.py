"""Listeners: TLS and client certificates, reload, WebSocket over TLS, Unix sockets, PROXY, IPv6."""

import os
import shutil
import socket
import ssl
import struct
import subprocess
from pathlib import Path

import pytest

from broker import PATIENCE_SECS, eventually
from test_clients import Paho
from wire import Peer, connect, fresh, packet, publish

TLS = """
[[listeners]]
url = "tls://127.0.0.1:0"
allow_anonymous = true
tls.certificate = "{dir}/server.crt"
tls.key = "{dir}/server.key"
"""

CLIENT_CERTIFICATES = TLS + """
tls.client_ca = "{dir}/ca.crt"
tls.client_auth = "require"
tls.crl = "{dir}/ca.crl"
identity_from_certificate = "cn"
[access]
acl_file = "{dir}/acl"
"""


def files(certs, *names, **more):
    return {name: (certs / name).read_text() for name in names} | more


def tls_peer(broker, certs, name=None, authority="ca", version=None, scheme="tls"):
    context = ssl.create_default_context(cafile=certs / f"{authority}.crt")
    if name:
        context.load_cert_chain(certs / f"{name}.crt", certs / f"{name}.key")
    if version:
        context.minimum_version = context.maximum_version = version
    raw = socket.create_connection(("127.0.0.1", broker.port(scheme)), PATIENCE_SECS)
    return Peer(context.wrap_socket(raw, server_hostname="localhost"))


@pytest.fixture
def tls(start, certs):
    return start(TLS, files(certs, "server.crt", "server.key"))


def round_trip(peer):
    topic = fresh()
    peer.accepted().subscribed(topic)
    peer.send(publish(topic, "x" * 40_000))
    assert peer.message()[1] == b"x" * 40_000


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_versions(tls, certs, version):
    with tls_peer(tls, certs, version=version) as peer:
        round_trip(peer)


def test_tls_server_is_known_by_its_authority(tls, certs):
    with pytest.raises(ssl.SSLCertVerificationError):
        tls_peer(tls, certs, authority="other_ca")


def test_tls_below_the_minimum_is_refused(start, certs):
    config = TLS + 'tls.min_version = "1.3"\n'
    broker = start(config, files(certs, "server.crt", "server.key"))
    with pytest.raises(ssl.SSLError):
        tls_peer(broker, certs, version=ssl.TLSVersion.TLSv1_2)
    with tls_peer(broker, certs, version=ssl.TLSVersion.TLSv1_3) as peer:
        round_trip(peer)


def test_mosquitto_clients_over_tls(tls, certs):
    topic = fresh()
    common = ["-h", "localhost", "-p", str(tls.port("tls")), "--cafile", str(certs / "ca.crt")]
    common += ["-t", topic, "-q", "1"]
    subprocess.run(["mosquitto_pub", *common, "-r", "-m", "kept"], check=True, timeout=20)
    got = subprocess.run(
        ["mosquitto_sub", *common, "-C", "1"], capture_output=True, check=True, timeout=20
    )
    assert got.stdout == b"kept\n"


@pytest.fixture
def with_client_certificates(start, certs):
    acl = "user anna\ntopic readwrite home/#\n"
    return start(
        CLIENT_CERTIFICATES, files(certs, "server.crt", "server.key", "ca.crt", "ca.crl", acl=acl)
    )


def test_client_certificate_becomes_the_user(with_client_certificates, certs):
    with tls_peer(with_client_certificates, certs, "client") as peer:
        peer.accepted().subscribed("home/x")
        peer.send(publish("home/x", "x"))
        assert peer.message()[1] == b"x"
        peer.send(publish("elsewhere", "x", qos=1))
        assert peer.expect(0x40)[2] == 0x87


def test_a_certificate_without_a_name_is_nobody_whatever_it_states(with_client_certificates, certs):
    with tls_peer(with_client_certificates, certs, "nameless") as peer:
        assert peer.connect(user="anna", password="any")[1] == 0x87


@pytest.mark.parametrize("name", [None, "stranger", "revoked"])
def test_client_certificates_are_required_and_checked(with_client_certificates, certs, name):
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        # With TLS 1.3 the client learns of the refusal when it reads.
        with tls_peer(with_client_certificates, certs, name) as peer:
            peer.accepted()


def test_certificates_are_read_again_on_sighup(tls, certs):
    def organisation():
        with tls_peer(tls, certs) as peer:
            subject = dict(part[0] for part in peer.stream.getpeercert()["subject"])
            return subject.get("organizationName")

    with tls_peer(tls, certs) as old:
        old.accepted()
        assert organisation() is None
        shutil.copy(certs / "renewed.crt", tls.directory / "server.crt")
        shutil.copy(certs / "renewed.key", tls.directory / "server.key")
        tls.reload()
        eventually(lambda: organisation() == "renewed", "the new certificate")
        # Connections that there are stay.
        old.ping()


def test_a_bad_certificate_on_reload_leaves_the_old_one(tls, certs):
    (tls.directory / "server.crt").write_text("not a certificate\n")
    tls.process.send_signal(1)
    event = tls.wait_for_log(lambda event: "not reloaded" in event["message"])
    assert event["level"] in ("WARN", "ERROR") and "server.crt" in str(event)
    with tls_peer(tls, certs) as peer:
        round_trip(peer)


def test_half_open_tls_handshake_ends_and_is_told(start, certs):
    config = TLS + "[limits]\nconnect_timeout_secs = 1\n"
    broker = start(config, files(certs, "server.crt", "server.key"))
    with socket.create_connection(("127.0.0.1", broker.port("tls")), PATIENCE_SECS) as half:
        # The first bytes of a ClientHello, and nothing more.
        half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        address = "%s:%d" % half.getsockname()
        assert drain(half) is not None
        broker.wait_for_log(lambda event: address in str(event))
    with tls_peer(broker, certs) as peer:
        round_trip(peer)


def drain(stream):
    """Everything until the other side closes."""
    data = b""
    stream.settimeout(PATIENCE_SECS)
    while True:
        try:
            more = stream.recv(4096)
        except ConnectionError:
            return data
        if not more:
            return data
        data += more


def test_plain_mqtt_on_a_tls_port_is_refused(tls, certs):
    with socket.create_connection(("127.0.0.1", tls.port("tls")), PATIENCE_SECS) as stream:
        stream.sendall(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00")
        # An alert perhaps, but no CONNACK.
        assert not drain(stream).startswith(b"\x20")
    tls.wait_for_log(lambda event: "speaks plain MQTT" in str(event))
    with tls_peer(tls, certs) as peer:
        round_trip(peer)


def test_the_file_of_a_unix_socket_has_the_configured_mode(start):
    config = '[[listeners]]\nurl = "unix://{dir}/q.sock"\nunix_mode = "MODE"\n'
    for mode in (0o600, 0o666):
        broker = start(config.replace("MODE", f"{mode:04o}"))
        assert (broker.directory / "q.sock").stat().st_mode & 0o7777 == mode


def test_mqtt311_7_1_1_2_unix_socket(start):
    broker = start('[[listeners]]\nurl = "unix://{dir}/quelea.sock"\nallow_anonymous = true\n')
    path = broker.directory / "quelea.sock"
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(path))
        round_trip(Peer(stream))
    topic = fresh()
    subprocess.run(
        ["mosquitto_pub", "--unix", str(path), "-t", topic, "-m", "x"], check=True, timeout=20
    )
    broker.stop()
    assert not path.exists(), "the socket is left behind"


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")
def test_ipv6(start):
    broker = start('[[listeners]]\nurl = "tcp://[::1]:0"\nallow_anonymous = true\n')
    with Peer(("::1", broker.port())) as peer:
        round_trip(peer)


def test_many_listeners_with_their_own_settings(start):
    config = """
    [[listeners]]
    url = "tcp://127.0.0.1:0"
    allow_anonymous = true
    packet_bytes_max = 1000
    [[listeners]]
    url = "tcp://127.0.0.1:0"
    allow_anonymous = true
    """
    broker = start(config)
    topic, large = fresh(), "x" * 2000
    with Peer(broker.port(nth=1)) as watcher, Peer(broker.port(nth=0)) as small:
        watcher.accepted().subscribed(topic)
        small.accepted().send(publish(topic, large))
        small.expect_disconnect(0x95)
        watcher.send(publish(topic, large))
        assert watcher.message()[1] == large.encode()


def keepalive_secs(port, peer):
    """Until the kernel probes the idle connection that a port has accepted; None: it never does."""
    ends = [f"0100007F:{number:04X}" for number in (port, peer.getsockname()[1])]
    for line in Path("/proc/net/tcp").read_text().splitlines():
        fields = line.split()
        if fields[1:3] == ends:
            kind, ticks = fields[5].split(":")
            return int(ticks, 16) / os.sysconf("SC_CLK_TCK") if kind == "02" else None
    return None


@pytest.mark.parametrize(("limits", "secs"), [("", 300), ("tcp_keepalive_secs = 60", 60)])
def test_idle_connections_are_probed(start, certs, limits, secs):
    config = TLS + f'[[listeners]]\nurl = "tcp://127.0.0.1:0"\n[[listeners]]\nurl = "ws://127.0.0.1:0"\n'
    config += f'[http]\nlisten = "127.0.0.1:0"\n[api]\nlisten = "127.0.0.1:0"\n[limits]\n{limits}\n'
    broker = start(config, files(certs, "server.crt", "server.key"))
    ports = [broker.port(scheme) for scheme in ("tcp", "tls", "ws", "http")]
    for port in [*ports, broker.port("http", 1)]:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            left = eventually(lambda port=port, peer=peer: keepalive_secs(port, peer))
            assert left <= secs, port


def test_a_keepalive_of_0_probes_nothing(start):
    config = '[[listeners]]\nurl = "tcp://127.0.0.1:0"\nallow_anonymous = true\n'
    broker = start(config + "[limits]\ntcp_keepalive_secs = 0\n")
    with Peer(broker.port()) as peer:
        peer.accepted()
        assert keepalive_secs(broker.port(), peer.stream) is None


PROXY = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
proxy_protocol = true
trusted_proxies = ["{trusted}"]
"""

PROXY_V1 = b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 1883\r\n"
PROXY_V2 = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack(">H", 12)
    + socket.inet_aton("203.0.113.7") + socket.inet_aton("198.51.100.1")
    + struct.pack(">HH", 4711, 1883)
)


@pytest.mark.parametrize("header", [PROXY_V1, PROXY_V2], ids=["v1", "v2"])
def test_proxy_header_gives_the_client_address(start, header):
    broker = start(PROXY.replace("{trusted}", "127.0.0.0/8"))
    with Peer(broker.port()) as peer:
        # In two pieces, since a stream may cut it anywhere.
        peer.send(header[:9])
        peer.send(header[9:])
        round_trip(peer)
        # What the log tells of this client is its own address, not that of the proxy.
        peer.send(b"\x00\x00")
        peer.expect_disconnect(0x81, 0x82)
    broker.wait_for_log(lambda event: "203.0.113.7:4711" in str(event))


@pytest.mark.parametrize("header", [PROXY_V1, PROXY_V2], ids=["v1", "v2"])
def test_proxy_header_from_elsewhere_is_refused(start, header):
    broker = start(PROXY.replace("{trusted}", "192.0.2.0/24"))
    with Peer(broker.port()) as peer:
        peer.send(header)
        peer.expect_end()


def test_who_comes_past_the_proxy_is_closed(start):
    broker = start(PROXY.replace("{trusted}", "192.0.2.0/24"))
    with Peer(broker.port()) as peer:
        peer.send(connect())
        peer.expect_end()


def test_bad_or_missing_proxy_header_is_refused(start):
    broker = start(PROXY.replace("{trusted}", "127.0.0.1/32"))
    no_header = b"\x10\x0d\x00\x04MQTT" + b"\0" * 99
    for bad in (b"PROXY NONSENSE\r\n", b"PROXY TCP4 1.2.3.4\r\n", no_header):
        with Peer(broker.port()) as peer:
            peer.send(bad)
            peer.expect_end()


def test_proxy_v2_local_keeps_the_address_of_the_connection(start):
    broker = start(PROXY.replace("{trusted}", "127.0.0.1/32"))
    with Peer(broker.port()) as peer:
        peer.send(b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00")
        round_trip(peer)


def test_websocket_over_tls(start, certs):
    config = TLS.replace("tls://", "wss://").replace("127.0.0.1:0", "127.0.0.1:0/mqtt")
    broker = start(config, files(certs, "server.crt", "server.key"))
    client = Paho(broker, transport="websockets")
    client.client.tls_set(ca_certs=str(certs / "ca.crt"))
    client.client.connect("localhost", broker.port("wss"))
    client.client.loop_start()
    _, reason, _ = client.wait("connect")
    assert not reason.is_failure
    topic = fresh()
    client.subscribe(topic, 1)
    client.client.publish(topic, "over wss", 1)
    assert client.message().payload == b"over wss"
    client.close()


@pytest.mark.parametrize("first, what", [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 505, "speaks TLS"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "speaks HTTP"),
    # Nothing of it makes a whole packet.
    (b"POST /", "speaks HTTP"),
    (PROXY_V1, "PROXY header"),
])
def test_another_protocol_on_a_plain_port_is_told_as_that(start, first, what):
    broker = start('[[listeners]]\nurl = "tcp://127.0.0.1:0"\nallow_anonymous = true\n')
    with Peer(broker.port()) as peer:
        peer.send(first)
        peer.expect_end()
    broker.wait_for_log(lambda event: what in str(event))


WS = '[[listeners]]\nurl = "ws://127.0.0.1:0/mqtt"\nallow_anonymous = true\n'


def upgrade(broker, *headers, host="localhost"):
    """The stream and the status of its answer."""
    stream = socket.create_connection(("127.0.0.1", broker.port("ws")), PATIENCE_SECS)
    lines = [
        "GET /mqtt HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt", *headers, "", "",
    ]
    stream.sendall("\r\n".join(lines).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += exactly(stream, 1)
    return stream, int(answer.split()[1])


def exactly(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        assert more, f"the stream ends after {data}"
        data += more
    return data


def masked(opcode, payload):
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + b"\0\0\0\0" + payload


def server_frame(stream):
    opcode, length = exactly(stream, 2)
    assert length < 126
    return opcode & 15, exactly(stream, length)


def test_websocket_disconnect_is_answered_by_a_close_handshake(start):
    broker = start(WS)
    stream, status = upgrade(broker)
    with stream:
        assert status == 101
        stream.sendall(masked(2, connect()))
        assert server_frame(stream)[1][0] == 0x20
        stream.sendall(masked(2, packet(0xE0)))
        assert server_frame(stream) == (8, b"\x03\xe8")
        # The client is slower than that, and its close is still taken.
        stream.sendall(masked(8, b"\x03\xe8"))
        assert stream.recv(1) == b""


def test_websocket_packets_have_frames_of_their_own(start):
    broker = start(WS)
    stream, _ = upgrade(broker)
    with stream:
        pings = [packet(0xC0)] * 3
        stream.sendall(masked(2, connect() + b"".join(pings)))
        frames = [server_frame(stream)[1] for _ in range(4)]
        assert frames[0][0] == 0x20 and frames[1:] == [b"\xd0\0"] * 3


def test_websocket_pages_of_other_origins_are_refused_where_nobody_logs_in(start):
    broker = start(WS)
    own = f"localhost:{broker.port('ws')}"
    for origin, host, expected in [
        (None, own, 101),
        (f"http://{own}", own, 101),
        ("https://evil.example", own, 403),
        # A name that its owner lets point to this machine.
        (f"http://evil.example:{broker.port('ws')}", f"evil.example:{broker.port('ws')}", 403),
        ("null", own, 403),
    ]:
        headers = [f"Origin: {origin}"] if origin else []
        stream, status = upgrade(broker, *headers, host=host)
        stream.close()
        assert status == expected, origin
    everybody = start(WS + 'websocket.origins = ["*"]\n')
    stream, status = upgrade(everybody, "Origin: https://evil.example")
    stream.close()
    assert status == 101
