"""Who may do what: anonymous clients, password files, access files, and reloading both."""

import base64
import hashlib
import os
import subprocess

import pytest

from broker import QUELEA, eventually
from wire import (
    PUBACK, SUBACK, UNSUBACK, Peer, connect, packet, prefixed, publish, subscribe,
)

# Bad user name or password, or not authorised: a server need not tell which.
NOT_ADMITTED = (0x86, 0x87)

WITH_PASSWORDS = """
[[listeners]]
url = "tcp://127.0.0.1:0"
[auth]
password_file = "{dir}/passwords"
"""

WITH_ACCESS = WITH_PASSWORDS + """
[access]
acl_file = "{dir}/acl"
"""

ACL = """
# Rules before the first user are those of anonymous clients.
topic read news/#

user anna
topic readwrite home/#
topic deny home/secret
topic write inbox/bruno

user bruno
topic read inbox/bruno

pattern readwrite users/%u/#
pattern write clients/%c/status
pattern read weather/#
"""


@pytest.fixture
def broker(start, passwords):
    return start(WITH_ACCESS, {"passwords": passwords, "acl": ACL})


def anna(broker, **options):
    return Peer(broker.port()).accepted(user="anna", password="secret", **options)


def bruno(broker):
    return Peer(broker.port()).accepted(user="bruno", password="geheim")


def may_publish(peer, topic):
    peer.send(publish(topic, "x", qos=1, packet_id=9))
    body = peer.expect(PUBACK)
    return len(body) == 2 or body[2] < 0x80


def may_subscribe(peer, topic_filter):
    peer.send(subscribe(topic_filter))
    return peer.expect(SUBACK)[-1] < 0x80


def test_passwords_decide(broker):
    for user, password, admitted in [
        ("anna", "secret", True), ("bruno", "geheim", True), ("anna", "geheim", False),
        ("nobody", "secret", False), ("anna", None, False),
    ]:
        with Peer(broker.port()) as peer:
            reason = peer.connect(user=user, password=password)[1]
            assert reason == 0 if admitted else reason in NOT_ADMITTED


def test_anonymous_is_refused_when_there_are_passwords(broker):
    with Peer(broker.port()) as peer:
        assert peer.connect()[1] in NOT_ADMITTED
        peer.expect_end()
    with Peer(broker.port(), 4) as peer:
        assert peer.connect(client_id="c")[1] in (4, 5)


def test_failed_logins_are_told_in_the_log(broker):
    with Peer(broker.port()) as peer:
        address = "%s:%d" % peer.stream.getsockname()
        peer.connect(client_id="the-client", user="anna", password="a-guess")
    event = broker.wait_for_log(lambda event: address in str(event))
    assert "the-client" in str(event) and "a-guess" not in str(broker.log)


def test_access_to_publish(broker):
    with anna(broker, client_id="c7") as peer:
        assert may_publish(peer, "home/lamp")
        assert not may_publish(peer, "home/secret")
        assert may_publish(peer, "inbox/bruno")
        assert not may_publish(peer, "weather/today")
        assert may_publish(peer, "users/anna/x")
        assert not may_publish(peer, "users/bruno/x")
        assert may_publish(peer, "clients/c7/status")
        assert not may_publish(peer, "clients/c8/status")


def test_access_to_subscribe(broker):
    with anna(broker) as peer:
        assert may_subscribe(peer, "home/#")
        assert may_subscribe(peer, "weather/#")
        assert not may_subscribe(peer, "news/#")
        assert not may_subscribe(peer, "inbox/bruno")
        assert not may_subscribe(peer, "users/bruno/#")


def test_access_to_receive(broker):
    """A wildcard subscription that is allowed delivers only what may be read."""
    with anna(broker) as sender, anna(broker) as receiver:
        receiver.subscribed("home/#")
        receiver.send(subscribe("users/anna/#"))
        receiver.expect(SUBACK)
        for topic in ("home/secret", "home/lamp"):
            sender.send(publish(topic, topic))
        assert receiver.message()[0] == "home/lamp"


def test_access_of_wills(broker):
    with bruno(broker) as reader:
        reader.subscribed("inbox/bruno")
        for topic, allowed in (("news/today", False), ("inbox/bruno", True)):
            with Peer(broker.port()) as peer:
                peer.connect(user="anna", password="secret", will=(topic, "gone", 0, False))
        assert reader.message()[:2] == ("inbox/bruno", b"gone")


def test_access_to_topics_before_mqtt_5(broker):
    with Peer(broker.port(), 4) as peer:
        peer.accepted(client_id="c", user="anna", password="secret")
        peer.send(subscribe("inbox/bruno", version=4))
        assert peer.expect(SUBACK)[-1] == 0x80


def test_shared_subscriptions_obey_the_access_file(broker):
    with anna(broker) as peer:
        assert may_subscribe(peer, "$share/group/home/+")
        assert not may_subscribe(peer, "$share/group/inbox/bruno")


def test_what_a_password_check_took_is_given_back_at_once(start):
    """19 MiB for each, of a machine that may have little; `limits.memory_bytes_max` counts them
    anyway."""
    broker = start(WITH_PASSWORDS, {"passwords": ""})
    command = [QUELEA, "passwd", "-b", str(broker.directory / "passwords"), "anna", "secret"]
    subprocess.run(command, check=True)
    broker.reload()
    before = resident_bytes(broker)

    def admitted():
        with Peer(broker.port()) as peer:
            return peer.connect(user="anna", password="secret")[1] == 0

    eventually(admitted, "the user")
    eventually(lambda: resident_bytes(broker) < before + (8 << 20), "memory that is given back")


def resident_bytes(broker):
    with open(f"/proc/{broker.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_password_file_is_read_again_on_sighup(broker):
    command = [QUELEA, "passwd", "-b", str(broker.directory / "passwords"), "carla", "neu"]
    subprocess.run(command, check=True)
    with Peer(broker.port()) as peer:
        assert peer.connect(user="carla", password="neu")[1] in NOT_ADMITTED
    broker.reload()

    def admitted():
        with Peer(broker.port()) as peer:
            return peer.connect(user="carla", password="neu")[1] == 0

    eventually(admitted, "the new user")


def test_removed_user_is_refused_after_reload_though_the_check_was_remembered(broker):
    anna(broker).close()
    path = str(broker.directory / "passwords")
    subprocess.run([QUELEA, "passwd", "-D", path, "anna"], check=True)
    broker.reload()

    def refused():
        with Peer(broker.port()) as peer:
            return peer.connect(user="anna", password="secret")[1] != 0

    eventually(refused, "the refusal")


def test_access_file_is_read_again_on_sighup_for_clients_that_are_connected(broker):
    with anna(broker) as peer:
        assert not may_publish(peer, "garden/lamp")
        acl = (broker.directory / "acl").read_text()
        (broker.directory / "acl").write_text(acl + "\nuser anna\ntopic write garden/#\n")
        broker.reload()
        eventually(lambda: may_publish(peer, "garden/lamp"), "the new rule")


def test_a_bad_file_on_reload_leaves_the_old_rules(broker):
    (broker.directory / "acl").write_text("nonsense home/#\n")
    broker.process.send_signal(1)
    event = broker.wait_for_log(lambda event: "not reloaded" in event["message"])
    assert event["level"] in ("WARN", "ERROR") and "acl" in str(event)
    with anna(broker) as peer:
        assert may_publish(peer, "home/lamp")
        assert not may_publish(peer, "garden/lamp")


def test_mosquitto_password_files_are_read(start):
    """Hashes as mosquitto_passwd writes them: PBKDF2 with SHA-512 ($7$), and SHA-512 ($6$)."""
    salt = os.urandom(12)

    def encode(data):
        return base64.b64encode(data).decode()

    newer = hashlib.pbkdf2_hmac("sha512", b"secret", salt, 101)
    older = hashlib.sha512(b"secret" + salt).digest()
    lines = [
        f"newer:$7$101${encode(salt)}${encode(newer)}", f"older:$6${encode(salt)}${encode(older)}",
    ]
    broker = start(WITH_PASSWORDS, {"passwords": "\n".join(lines) + "\n"})
    for user in ("newer", "older"):
        for password, reasons in (("secret", (0,)), ("wrong", NOT_ADMITTED)):
            with Peer(broker.port()) as peer:
                assert peer.connect(user=user, password=password)[1] in reasons


def test_a_reconnect_storm_is_not_a_storm_of_password_hashing(broker):
    """A hundred logins at once all get in."""
    peers = [Peer(broker.port()) for _ in range(100)]
    for peer in peers:
        peer.send(connect(user="anna", password="secret"))
    for peer in peers:
        assert peer.expect(0x20)[1] == 0
        peer.close()


def test_unsubscribing_needs_no_permission(broker):
    with anna(broker) as peer:
        peer.send(packet(0xA2, b"\0\1\0" + prefixed("inbox/bruno")))
        assert peer.expect(UNSUBACK)[-1] == 0x11


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://*:0"])
def test_open_to_the_world_without_authentication_needs_a_word(tmp_path, url):
    config = tmp_path / "quelea.toml"
    config.write_text(f'[[listeners]]\nurl = "{url}"\n')
    command = [QUELEA, "serve", "--check-config", "--http=off", "--config", str(config)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 2
    assert "allow_anonymous" in refused.stderr or "--allow-anonymous" in refused.stderr
    allowed = subprocess.run([*command, "--allow-anonymous"], capture_output=True, timeout=20)
    assert allowed.returncode == 0


def kept(peer, user, password, **options):
    """Opens a session that lasts an hour, or tells why not."""
    expiry = b"\x11\x00\x00\x0e\x10"
    return peer.connect(user=user, password=password, properties=expiry, **options)


@pytest.mark.parametrize("restart", [False, True])
def test_a_session_is_its_users_only(broker, restart):
    with Peer(broker.port()) as peer:
        assert kept(peer, "anna", "secret", client_id="phone")[1] == 0
        peer.subscribed("home/#", 1)
    with anna(broker) as peer:
        peer.send(publish("home/door", "open", 1))
        assert peer.expect(PUBACK)[2:] in (b"", b"\x00")
    if restart:
        broker.restart()
    for clean in (False, True):
        with Peer(broker.port()) as peer:
            refused = kept(peer, "bruno", "geheim", client_id="phone", clean=clean)
            assert refused[:2] == (0, 0x87)
            peer.expect_end()
    with Peer(broker.port(), version=4) as peer:
        assert peer.connect(client_id="phone", user="bruno", password="geheim")[1] == 5
    broker.wait_for_log(lambda event: "belongs to another user" in str(event) and "bruno" in str(event))
    with Peer(broker.port()) as peer:
        assert kept(peer, "anna", "secret", client_id="phone", clean=False)[:2] == (1, 0)
        assert peer.message()[1] == b"open"
        # Nobody else cuts her off.
        with Peer(broker.port()) as other:
            assert other.connect(client_id="phone", user="bruno", password="geheim")[1] == 0x87
        peer.ping()


def test_a_session_may_be_anybodys(start, passwords):
    broker = start(WITH_PASSWORDS + 'session_owner = "anybody"\n', {"passwords": passwords})
    with Peer(broker.port()) as peer:
        assert kept(peer, "anna", "secret", client_id="phone")[1] == 0
    with Peer(broker.port()) as peer:
        assert kept(peer, "bruno", "geheim", client_id="phone", clean=False)[:2] == (1, 0)


def test_rules_for_names_that_nobody_proves_are_an_error(tmp_path):
    (tmp_path / "acl").write_text("topic read news/#\nuser anna\ntopic readwrite home/#\n")
    (tmp_path / "quelea.toml").write_text('[access]\nacl_file = "acl"\n')
    ports = ["--port=0", "--http=off"]
    command = [QUELEA, "serve", *ports, f"--config={tmp_path / 'quelea.toml'}", "--check-config"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode != 0
    assert "acl:3: a rule for usernames needs verified ones: usernames are not verified" in ran.stderr, ran.stderr
    (tmp_path / "acl").write_text("topic read news/#\npattern write clients/%c/status\n")
    subprocess.run(command, check=True, capture_output=True, timeout=60)
