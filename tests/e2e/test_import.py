"""Configurations of other brokers: imported, compared with what is expected, and served.

`QUELEA_BLESS=1` writes what is expected anew.
"""

import os
import queue
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

import tokens
from broker import PATIENCE_SECS, QUELEA, ROOT, eventually

sys.path.insert(0, str(ROOT / "tests"))
from ports import free_port  # noqa: E402

SAMPLES = ROOT / "tests/e2e/data/import"
PASSWORDS = (  # written by mosquitto_passwd: s3cret and geheim
    "anna:$7$101$0vHvMFlZRbkI93IX$tFNWO2tbSkApSmgwTmGk7zh/cUex4GRqB+r8OQ+5D0689dA6WpQFFb51LCQbTf"
    "IMcxvvVqVH9O2ntThAieBS3Q==\n"
    "bob:$6$eWmafxbiSztnCB68$qBjiLfzHqlf7bTl6c2phq9aSyaShWQp2XZtIiU91EB7Y++1w1d+j9BKnq33hEZ+n4FB"
    "ht9/nK16w/c9VK/DYgg==\n"
)
TOKEN = ("anna", tokens.hs256({"username": "anna"}, "0123456789abcdef0123456789abcdef"))
NOBODY, ANNA, WRONG = (None, None), ("anna", "s3cret"), ("anna", "wrong")
ACCEPTED, REFUSED = 0, 0x87


def run(*arguments):
    return subprocess.run([QUELEA, *map(str, arguments)], capture_output=True, text=True)


def prepare(name, certs, directory, remote=0):
    """The sample in a directory, with the files that it names."""
    for path in (SAMPLES / name).iterdir():
        text = path.read_text().replace("{dir}", str(directory)).replace("{remote}", str(remote))
        (directory / path.name).write_text(text)
    for path in Path(certs).iterdir():
        shutil.copy(path, directory)
    (directory / "passwd").write_text(PASSWORDS)
    names = ["mosquitto.conf", "emqx.conf", "cluster.hocon"]
    return next(directory / name for name in names if (directory / name).exists())


def compare(name, directory, output, remote=0):
    for path in sorted(output.glob("*.toml")):
        text = path.read_text().replace(str(directory), "{dir}")
        text = text.replace(f":{remote}\"", ":{remote}\"") if remote else text
        expected = SAMPLES / name / f"expected-{path.name}"
        if os.environ.get("QUELEA_BLESS"):
            expected.write_text(text)
        assert text == expected.read_text(), path.name


def connect(broker, scheme, nth, user, certs, client_certificate=None):
    """The reason code of the CONNACK, and the client."""
    transport = "websockets" if scheme in ("ws", "wss") else "tcp"
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5, transport=transport
    )
    if user[0]:
        client.username_pw_set(*user)
    if scheme in ("tls", "wss"):
        context = ssl.create_default_context(cafile=certs / "ca.crt")
        if client_certificate:
            context.load_cert_chain(*client_certificate)
        client.tls_set_context(context)
    answers = []
    client.on_connect = lambda _c, _u, _f, reason, _p: answers.append(reason.value)
    client.connect("localhost", broker.port(scheme, nth))
    while not answers:
        assert client.loop(5) == mqtt.MQTT_ERR_SUCCESS or answers
    return answers[0], client


def serve(start, output):
    """The broker with this configuration, on free ports."""
    text = (output / "quelea.toml").read_text()
    text = re.sub(r'(?m)^(url = "\w+://[^/"]*):\d+([/"])', r'\1:0\2', text)
    files = {path.name: path.read_text() for path in output.iterdir() if path.suffix != ".sock"}
    del files["quelea.toml"]
    # The test reads the log from standard error.
    return start(text, files, environment={"QUELEA_log__target": "stderr", "QUELEA_log__level": "info"})


# Scheme, number among the listeners of the scheme, user, reason.
SERVED = {
    "home-assistant": [("tcp", 0, ANNA, ACCEPTED), ("tcp", 0, NOBODY, REFUSED)],
    "zigbee": [("tcp", 0, NOBODY, ACCEPTED), ("ws", 0, ANNA, ACCEPTED), ("ws", 0, NOBODY, REFUSED)],
    "lets-encrypt": [
        ("tcp", 0, ANNA, ACCEPTED),
        ("tls", 0, ANNA, ACCEPTED),
        ("tls", 0, WRONG, REFUSED),
        ("wss", 0, ANNA, ACCEPTED),
    ],
    "docker-image": [("tcp", 0, NOBODY, ACCEPTED), ("tcp", 0, ANNA, ACCEPTED)],
    "per-listener": [
        ("tcp", 0, NOBODY, ACCEPTED),
        ("tcp", 1, NOBODY, REFUSED),
        ("tcp", 1, ANNA, ACCEPTED),
    ],
    "limits": [("tcp", 0, NOBODY, ACCEPTED)],
    "go-auth": [
        ("tcp", 0, ANNA, ACCEPTED),
        ("tcp", 0, ("bob", "s3cret"), ACCEPTED),
        ("tcp", 0, ("bob", "wrong"), REFUSED),
        ("tcp", 0, NOBODY, REFUSED),
    ],
    "bridge-aws": [("tcp", 0, NOBODY, ACCEPTED)],
    "bridge-cloud": [("tcp", 0, NOBODY, ACCEPTED)],
    "emqx-installed": [("tcp", 0, NOBODY, ACCEPTED), ("ws", 0, NOBODY, ACCEPTED)],
    "emqx-tokens": [("tcp", 0, TOKEN, ACCEPTED), ("tcp", 0, ANNA, REFUSED)],
    "pattern-deny": [("tcp", 0, ANNA, ACCEPTED), ("tcp", 0, NOBODY, REFUSED)],
    "local-only": [("tcp", 0, NOBODY, ACCEPTED)],
    "dynamic-security": [
        ("tcp", 0, ANNA, ACCEPTED),
        ("tcp", 0, WRONG, REFUSED),
        ("tcp", 0, ("gone", "s3cret"), REFUSED),
        ("tcp", 0, NOBODY, ACCEPTED),
    ],
}


@pytest.mark.parametrize("name", SERVED)
def test_a_configuration_is_carried_over_and_served(name, start, certs, tmp_path):
    config, output = prepare(name, certs, tmp_path), tmp_path / "output"
    done = run("import", config, "--output", output)
    assert done.returncode == 0, done.stderr
    compare(name, tmp_path, output)
    if name == "local-only":
        # The default listeners have fixed ports.
        text = (output / "quelea.toml").read_text()
        (output / "quelea.toml").write_text(text + '[[listeners]]\nurl = "tcp://127.0.0.1:0"\n')
    broker = serve(start, output)
    for scheme, nth, user, expected in SERVED[name]:
        answer, client = connect(broker, scheme, nth, user, certs)
        assert answer == expected, (name, scheme, nth, user)
        client.disconnect()


@pytest.mark.parametrize("name", ["client-certificates", "emqx-tls"])
def test_names_from_certificates_are_carried_over(name, start, certs, tmp_path):
    config, output = prepare(name, certs, tmp_path), tmp_path / "output"
    done = run("import", config, "--output", output)
    assert done.returncode == 0, done.stderr
    compare(name, tmp_path, output)
    broker = serve(start, output)
    pair = (certs / "client.crt", certs / "client.key")
    answer, client = connect(broker, "tls", 0, NOBODY, certs, pair)
    assert answer == ACCEPTED
    client.disconnect()


def test_a_unix_socket_is_carried_over(start, certs, tmp_path):
    config, output = prepare("unix-socket", certs, tmp_path), tmp_path / "output"
    done = run("import", config, "--output", output)
    assert done.returncode == 0, done.stderr
    compare("unix-socket", tmp_path, output)
    broker = serve(start, output)
    assert broker.urls and (tmp_path / "mosquitto.sock").exists()


@pytest.mark.parametrize("name", ["pre-shared-keys", "emqx-database"])
def test_rights_that_cannot_be_carried_over_are_never_dropped(name, certs, tmp_path):
    config, output = prepare(name, certs, tmp_path), tmp_path / "output"
    done = run("import", config, "--output", output)
    assert done.returncode == 1 and "rights differ" in done.stderr and not output.exists()
    done = run("import", config, "--output", output, "--accept-differences")
    assert done.returncode == 0, done.stderr
    compare(name, tmp_path, output)
    done = run("import", config, "--output", output, "--accept-differences")
    assert done.returncode == 1 and "exists" in done.stderr


ACL = """
topic read open/#
topic write drop/+

user anna
topic home/%u
topic own/anna/%c
topic readwrite home/living room/#
topic deny home/living room/safe
topic denied/anna/#
topic write only/#

user admin
topic readwrite #

pattern read end
pattern write tele/%c/state
pattern readwrite by/%u/#
pattern deny denied/#
"""
TOPICS = [
    "open/a", "drop/a", "drop/a/b", "home/anna", "home/%u", "own/anna/%c", "own/anna/c2",
    "home/living room/lamp", "home/living room/safe", "home/living room", "denied/anna/x",
    "denied/x", "only/a", "tele/c1/state", "tele/c2/state", "by/anna/x", "by/admin/x", "by//x",
    "none",
]  # fmt: skip


def rights(port, user, client_id):
    """The topics that a client may publish to, and those that it receives."""
    admin = client(port, ("admin", "s3cret"), f"admin-{client_id}")
    own = client(port, user, client_id)
    received, done, acks = [], threading.Event(), {}

    def on_message(_client, _userdata, message):
        received.append(message.topic)
        if message.topic == "end":
            done.set()

    subscribed, published = threading.Event(), queue.Queue()
    own.on_message = on_message
    own.on_subscribe = lambda *_: subscribed.set()
    own.on_publish = lambda _c, _u, mid, reason, _p: published.put((mid, reason.value))
    own.subscribe("#", 1)
    assert subscribed.wait(PATIENCE_SECS)
    for topic in [*TOPICS, "end"]:
        admin.publish(topic, "x", 1)
    assert done.wait(PATIENCE_SECS), received
    own.unsubscribe("#")
    mids = {own.publish(topic, "y", 1).mid: topic for topic in TOPICS}
    for _ in mids:
        mid, reason = published.get(timeout=PATIENCE_SECS)
        acks[mids[mid]] = reason != REFUSED
    for each in (own, admin):
        each.disconnect()
        each.loop_stop()
    return {topic for topic, is_allowed in acks.items() if is_allowed}, set(received[:-1])


def client(port, user, client_id):
    made = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5
    )
    if user[0]:
        made.username_pw_set(*user)
    connected = threading.Event()
    made.on_connect = lambda *_: connected.set()
    made.connect("127.0.0.1", port)
    made.loop_start()
    assert connected.wait(PATIENCE_SECS)
    return made


@pytest.mark.parametrize("pattern_deny", [False, True])
def test_rights_are_those_of_mosquitto(pattern_deny, start, tmp_path):
    """The real mosquitto and the broker decide alike, by an access file or by its policy."""
    anna, bob = PASSWORDS.splitlines()
    (tmp_path / "passwd").write_text(f"{anna}\nadmin{anna.removeprefix('anna')}\n")
    # A policy cannot have a placeholder as literal text.
    left_out = r"topic .*%[uc]\n" if pattern_deny else r"pattern deny .*\n"
    (tmp_path / "acl").write_text(re.sub(left_out, "", ACL))
    port, config, output = free_port(), tmp_path / "mosquitto.conf", tmp_path / "output"
    config.write_text(
        f"user root\nlistener {port} 127.0.0.1\nallow_anonymous true\npassword_file {tmp_path}/passwd\n"
        f"acl_file {tmp_path}/acl\n"
    )
    done = run("import", config, "--output", output)
    assert done.returncode == 0, done.stderr
    assert (output / "policy.toml").exists() == pattern_deny
    broker = serve(start, output)
    with mosquitto(config, port):
        for user, client_id in ((NOBODY, "c1"), (ANNA, "c2"), (ANNA, "c1")):
            expected = rights(port, user, client_id)
            assert rights(broker.port(), user, client_id) == expected, (user, client_id)


def test_a_bridge_is_carried_over_and_relays(start, certs, tmp_path):
    remote, output = free_port(), tmp_path / "output"
    config = prepare("bridge-mosquitto", certs, tmp_path, remote)
    done = run("import", config, "--output", output)
    assert done.returncode == 0, done.stderr
    compare("bridge-mosquitto", tmp_path, output, remote)
    other = tmp_path / "other.conf"
    other.write_text(f"listener {remote} 127.0.0.1\nallow_anonymous true\n")
    with mosquitto(other, remote):
        broker = serve(start, output)
        pairs = [("house/up/a", "site/up/a", True), ("house/down/a", "site/down/a", False)]
        for local_topic, remote_topic, is_out in pairs:
            near = client(broker.port(), NOBODY, f"near-{is_out}")
            far = client(remote, NOBODY, f"far-{is_out}")
            ends = [(near, local_topic), (far, remote_topic)]
            (sender, topic), (receiver, expected) = ends if is_out else ends[::-1]
            received, subscribed = queue.Queue(), threading.Event()
            receiver.on_message = lambda _c, _u, message, to=received: to.put(message.topic)
            receiver.on_subscribe = lambda *_, done=subscribed: done.set()
            receiver.subscribe("#", 1)
            assert subscribed.wait(PATIENCE_SECS)
            # Until the bridge has connected, the message does not cross.
            eventually(lambda: crosses(sender, topic, received, expected), expected)
            for each in (near, far):
                each.disconnect()
                each.loop_stop()


def crosses(sender, topic, received, expected):
    sender.publish(topic, "x", 1)
    try:
        return received.get(timeout=1) == expected
    except queue.Empty:
        return False


@contextmanager
def mosquitto(config, port):
    process = subprocess.Popen(
        ["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: accepts(port), "mosquitto listens")
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_SECS)


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_the_files_of_debian_are_understood():
    for path in ("/usr/share/doc/mosquitto/examples/mosquitto.conf", "/etc/mosquitto/mosquitto.conf"):
        done = run("import", path)
        assert done.returncode == 0 and done.stdout.startswith("# Written by"), done.stderr


def test_serve_names_the_command_for_a_file_of_mosquitto(tmp_path):
    path = tmp_path / "mosquitto.conf"
    path.write_text("# A comment\nlistener 1883\nallow_anonymous true\n")
    for flags in ((), ("--check-config",)):
        done = run("serve", "--config", path, *flags)
        assert done.returncode == 2 and f"quelea import {path}" in done.stderr


@pytest.mark.parametrize("output", [(), ("--output", "out")])
def test_what_the_broker_would_refuse_is_an_error_with_its_line(output, tmp_path):
    """The result is checked before anything is written."""
    path = tmp_path / "mosquitto.conf"
    (tmp_path / "acl").write_text("topic read a\ntopic read a/#/b\n")
    (tmp_path / "passwd").write_text("anna:not-hashed\n")
    for lines, place, why in [
        ("listener 1883\nallow_anonymous true\nmax_queued_messages 99999999999\n", "mosquitto.conf:3", "queued_messages_max"),
        ("listener 1883\nallow_anonymous true\nacl_file acl\n", "acl:2", "must be the last level"),
        ("listener 1883\npassword_file passwd\n", "passwd:1", "not hashed"),
        ("listener 1883 127.0.0.1\n\nlistener 1883 127.0.0.1\n", "mosquitto.conf:3", "already has this address"),
        ("connection c\naddress h\ntopic a+ out\n", "mosquitto.conf:3", "a+"),
    ]:
        path.write_text(lines)
        arguments = [tmp_path / part if part == "out" else part for part in output]
        done = run("import", path, *arguments)
        assert done.returncode == 1 and "nothing was written" in done.stderr, done.stderr
        found = [line for line in done.stderr.splitlines() if ": error: " in line]
        assert any(place in line and why in line for line in found), (lines, done.stderr)
        assert not (tmp_path / "out").exists() and not done.stdout


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    """A pipe without a writer, a device without an end and a large file end at once."""
    pipe, link, large = tmp_path / "pipe", tmp_path / "link", tmp_path / "large"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    large.write_bytes(b"# x\n" * (5 << 20))
    config = tmp_path / "mosquitto.conf"
    for path, why in [(pipe, "must be a regular file"), (link, "must be a regular file"), (large, "16 MiB")]:
        done = run("import", path)
        assert done.returncode == 1 and why in done.stderr, done.stderr
        for option in ("acl_file", "password_file", "include_dir"):
            (tmp_path / "conf.d").mkdir(exist_ok=True)
            included = tmp_path / "conf.d" / "a.conf"
            included.unlink(missing_ok=True)
            included.symlink_to(path)
            value = tmp_path / "conf.d" if option == "include_dir" else path
            config.write_text(f"listener 1883\nallow_anonymous true\n{option} {value}\n")
            done = run("import", config)
            assert done.returncode == 1 and why in done.stderr, (option, done.stderr)
    (tmp_path / "conf.d" / "a.conf").unlink()
    (tmp_path / "conf.d" / "a.conf").write_text(f"include_dir {tmp_path}/conf.d\n")
    config.write_text(f"include_dir {tmp_path}/conf.d\n" * 1_200)
    done = run("import", config)
    assert done.returncode == 1 and "more than 1000 files" in done.stderr


@pytest.mark.parametrize(
    "name,text,what",
    [
        ("vernemq.conf", "allow_anonymous = off\nlistener.tcp.default = 127.0.0.1:1883\n", "VerneMQ"),
        ("nanomq.conf", "mqtt {\n    property_size = 32\n}\n", "NanoMQ"),
        ("config.xml", "<?xml version=\"1.0\"?>\n<hivemq>\n</hivemq>\n", "HiveMQ"),
        ("emqx.conf", "listener.tcp.external = 0.0.0.0:1883\n", "EMQX 4"),
        ("passwd", PASSWORDS, "password file"),
    ],
)
def test_a_file_of_another_kind_is_named(name, text, what, tmp_path):
    (tmp_path / name).write_text(text)
    done = run("import", tmp_path / name)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len(lines) == 1 and what in lines[0], done.stderr


def test_the_file_of_the_dynamic_security_plugin_is_imported_alone(tmp_path):
    shutil.copy(SAMPLES / "dynamic-security" / "dynamic-security.json", tmp_path / "d.json")
    done = run("import", tmp_path / "d.json", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"quelea.toml", "policy.toml", "dynamic-security.passwd"}
    checked = run("policy", "check", tmp_path / "out" / "policy.toml")
    assert checked.returncode == 0, checked.stderr
