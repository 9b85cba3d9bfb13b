"""The Kafka target against a real Kafka, read back by confluent-kafka (librdkafka)."""

import base64
import http.server
import json
import signal
import threading
import time

import pytest
from hub import Hub
from server import PASSWORD

pytestmark = pytest.mark.timeout(600)
KEYS = 64


def check(found, count, without=()):
    """Each number once, with its key, headers and value, and in order for each key."""
    numbers = []
    for messages in found.values():
        last = {}
        for message in messages:
            number = int(message.value()[:12])
            key = message.key()
            assert key == b"key-%d" % (number % KEYS)
            assert message.headers() == [("ce_id", str(number).encode()), ("ce_type", b"test")]
            assert message.value()[12:].strip(b"x") == b""
            assert number > last.get(key, -1), f"{number} behind {last[key]}"
            last[key] = number
            numbers.append(number)
    wanted = [number for number in range(count) if number not in without]
    assert sorted(numbers) == wanted


def check_last_copies(found, count, without=()):
    """Each number at least once; the last copies of each key are in order."""
    last_copies = {}
    for messages in found.values():
        for message in messages:
            number = int(message.value()[:12])
            copies = last_copies.setdefault(message.key(), {})
            copies.pop(number, None)
            copies[number] = True
    for key, copies in last_copies.items():
        assert list(copies) == sorted(copies), key
    assert set().union(*last_copies.values()) == set(range(count)) - set(without)


def test_kill_9_in_mid_stream_loses_and_doubles_nothing(kafka, send):
    topic = kafka.create("killed")
    sender = send("--topic", topic, "--count", 300_000, "--size", 200, "--delivery-ms", 240_000)
    sender.wait_for(50_000)
    kafka.kill()
    assert sender.child.poll() is None, "it ended before Kafka was killed"
    kafka.start()
    summary = sender.summary()
    assert summary["counts"] == {"accepted": 300_000}
    check(kafka.read(topic), 300_000)


def test_what_has_no_answer_in_time_comes_again_in_order(kafka, send):
    """Kafka is away for longer than a delivery may take: records are sent again, by a new epoch."""
    topic = kafka.create("again")
    short = ["--request-ms", 1000, "--delivery-ms", 2000]
    sender = send("--topic", topic, "--count", 300_000, "--size", 200, *short)
    sender.wait_for(50_000)
    kafka.kill()
    sender.wait_for_failures()
    kafka.start()
    summary = sender.summary()
    assert summary["accepted"] == 300_000
    check_last_copies(kafka.read(topic), 300_000)


def test_kafka_that_hangs_in_mid_stream(kafka, send):
    """What it still stores of old requests, once it goes on, is not behind newer records."""
    topic = kafka.create("hanging")
    short = ["--request-ms", 1000, "--delivery-ms", 2000]
    sender = send("--topic", topic, "--count", 300_000, "--size", 200, *short)
    sender.wait_for(50_000)
    kafka.child.send_signal(signal.SIGSTOP)
    try:
        sender.wait_for_failures()
    finally:
        kafka.child.send_signal(signal.SIGCONT)
    assert sender.summary()["accepted"] == 300_000
    check_last_copies(kafka.read(topic), 300_000)


def test_kafka_that_is_away_is_said_and_waited_for(kafka, send):
    topic = kafka.create("away")
    kafka.kill()
    sender = send("--topic", topic, "--count", 1000)
    try:
        sender.wait_for_first("unavailable")
    finally:
        kafka.start()
    summary = sender.summary()
    assert summary["accepted"] == 1000
    assert "Connection refused" in summary["reasons"]["unavailable"][0]
    check(kafka.read(topic), 1000)


def test_of_all_records_the_one_that_is_too_large_is_refused(kafka, send):
    topic = kafka.create("large")
    large = ["--large", "500:2000000", "--record-bytes-max", 3_000_000]
    summary = send("--topic", topic, "--count", 20_000, *large).summary()
    assert summary["refused"] == [500]
    assert "MessageTooLarge" in summary["reasons"]["refused"][0]
    check(kafka.read(topic), 20_000, without=[500])


def test_a_record_over_the_own_limit_is_refused_without_kafka(kafka, send):
    topic = kafka.create("larger")
    summary = send("--topic", topic, "--count", 1000, "--large", "7:2000000").summary()
    assert summary["refused"] == [7]
    assert summary["reasons"]["refused"] == ["the record has 2000042 bytes, more than 1048576"]
    check(kafka.read(topic), 1000, without=[7])


def test_a_record_that_spoils_its_batch_is_found(kafka, send):
    """A topic with a small limit refuses the batches of krafka, too: they are made smaller."""
    topic = kafka.create("small", max_message_bytes=1000)
    options = ["--keys", 4, "--lanes", 4, "--batch", 10, "--large", "100:2000"]
    summary = send("--topic", topic, "--count", 400, *options).summary()
    assert summary["refused"] == [100]
    assert "batch_refused" in summary["counts"]
    check_last_copies(kafka.read(topic), 400, without=[100])


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
def test_compressions(kafka, send, compression):
    topic = kafka.create(f"compressed-{compression}")
    options = ["--count", 20_000, "--size", 300, "--compression", compression]
    assert send("--topic", topic, *options).summary()["counts"] == {"accepted": 20_000}
    check(kafka.read(topic), 20_000)


@pytest.mark.parametrize("mechanism", ["plain", "scram-sha-256", "scram-sha-512"])
def test_a_wrong_password_is_said_and_the_right_one_is_tried(kafka, send, tmp_path, mechanism):
    topic = kafka.create(f"login-{mechanism}")
    file = tmp_path / "password"
    file.write_text("wrong-horse\n")
    login = ["--login", f"{mechanism}:ann:{file}"]
    wrong = send("--topic", topic, *login, "--give-up-ms", 3000, listener="SASL")
    summary = wrong.summary()
    assert summary["accepted"] == 0
    assert set(summary["counts"]) == {"unavailable"}
    for reason in summary["reasons"]["unavailable"]:
        assert "authentication" in reason.lower(), reason
    assert "horse" not in wrong.shown
    sender = send("--topic", topic, *login, "--count", 1000, listener="SASL")
    sender.wait_for_first("unavailable")
    file.write_text(f"{PASSWORD}\n")
    assert sender.summary()["accepted"] == 1000
    check(kafka.read(topic), 1000)


def token():
    """Without a signature: Kafka's own validator for tests takes it."""

    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = int(time.time())
    claims = {"sub": "ann", "iat": now, "exp": now + 3600}
    return f"{part({'alg': 'none'})}.{part(claims)}."


def test_a_token_logs_in(kafka, send, tmp_path):
    topic = kafka.create("token")
    file = tmp_path / "token"
    file.write_text(f"{token()}\n")
    login = ["--login", f"oauthbearer::{file}"]
    sender = send("--topic", topic, "--count", 1000, *login, listener="SASL")
    assert sender.summary()["counts"] == {"accepted": 1000}


class Tokens(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic "))
        form = self.rfile.read(int(self.headers["Content-Length"]))
        is_right = (login, form) == (b"quelea:secret", b"grant_type=client_credentials")
        self.send_response(200 if is_right else 401)
        self.end_headers()
        answer = {"access_token": token(), "token_type": "Bearer", "expires_in": 3600}
        self.wfile.write(json.dumps(answer if is_right else {}).encode())

    def log_message(self, *_):
        pass


def test_a_token_of_an_identity_provider_logs_in(kafka, send, tmp_path):
    topic = kafka.create("identity")
    file = tmp_path / "secret"
    file.write_text("secret\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as provider:
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        url = ["--token-url", f"http://127.0.0.1:{provider.server_port}/token"]
        wrong = ["--login", f"oauthbearer-from:other:{file}", *url, "--give-up-ms", 2000]
        summary = send("--topic", topic, *wrong, listener="SASL").summary()
        assert "the token endpoint answered 401" in summary["reasons"]["unavailable"][0]
        right = ["--login", f"oauthbearer-from:quelea:{file}", *url]
        sender = send("--topic", topic, "--count", 1000, *right, listener="SASL")
        assert sender.summary()["counts"] == {"accepted": 1000}
        provider.shutdown()


def test_password_over_tls(kafka, send, authority, tmp_path):
    topic = kafka.create("password-over-tls")
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    options = ["--ca", authority.certificate, "--login", f"scram-sha-512:ann:{file}"]
    sender = send("--topic", topic, "--count", 1000, *options, listener="SASLTLS")
    assert sender.summary()["counts"] == {"accepted": 1000}


def test_client_certificates_and_renewed_ones(kafka, send, authority):
    topic = kafka.create("certificates")
    server = ["--topic", topic, "--ca", authority.certificate, "--give-up-ms", 3000]
    summary = send(*server, listener="MTLS").summary()
    assert set(summary["counts"]) == {"unavailable"}
    assert "received fatal alert" in summary["reasons"]["unavailable"][0]

    certificate, key = authority.issue("client")
    own = ["--ca", authority.certificate, "--certificate", certificate, "--key", key]
    rate = ["--count", 200_000, "--size", 100, "--delivery-ms", 240_000]
    sender = send("--topic", topic, *own, *rate, listener="MTLS")
    sender.wait_for(20_000)
    # New certificates of both sides: the client's file is read for the next connection.
    kafka.kill()
    kafka.write_properties()
    authority.issue("client")
    kafka.start()
    assert sender.summary()["counts"] == {"accepted": 200_000}
    check(kafka.read(topic), 200_000)


def test_a_certificate_of_a_stranger_is_refused(kafka, send, authority, tmp_path):
    topic = kafka.create("stranger")
    stranger = type(authority)(tmp_path)
    options = ["--topic", topic, "--ca", stranger.certificate, "--give-up-ms", 2000]
    summary = send(*options, listener="SASLTLS").summary()
    assert set(summary["counts"]) == {"unavailable"}
    assert "invalid peer certificate" in summary["reasons"]["unavailable"][0]


def test_addresses_of_own_networks_need_permission(kafka, send):
    topic = kafka.create("addresses")
    options = ["--topic", topic, "--give-up-ms", 5000]
    summary = send(*options, permit=None).summary()
    assert set(summary["counts"]) == {"unavailable"}
    assert "127.0.0.1 is in a network of this machine" in summary["reasons"]["unavailable"][0]
    # The first server is permitted, but names another address for itself.
    fast = ["--request-ms", 1000, "--delivery-ms", 2000]
    summary = send(*options, *fast, listener="METADATA").summary()
    assert summary["accepted"] == 0
    reasons = [text for texts in summary["reasons"].values() for text in texts]
    assert any("169.254.169.254 is in a network of this machine" in text for text in reasons)


def test_old_versions_of_the_protocol(kafka, send):
    """Event Hubs closes the connection on ApiVersions 4, and knows Produce 7 and Metadata 5."""
    topic = kafka.create("hub")
    hub = Hub(kafka.hub_port, ("127.0.0.1", kafka.ports["HUB"]))
    options = ["--topic", topic, "--count", 20_000, "--compression", "gzip"]
    summary = send(*options, server=f"127.0.0.1:{kafka.hub_port}").summary()
    hub.close()
    assert summary["counts"] == {"accepted": 20_000}
    assert hub.closed_on == set()
    assert {(0, 7), (3, 5), (18, 3)} <= hub.seen
    check(kafka.read(topic), 20_000)
