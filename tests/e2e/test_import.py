"""Configurations of other brokers: imported, compared with what is expected, and served.

`QUELEA_BLESS=1` writes what is expected anew.
"""

import os
import re
import shutil
import ssl
import subprocess
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from broker import QUELEA, ROOT

SAMPLES = ROOT / "tests/e2e/data/import"
PASSWORDS = (  # written by mosquitto_passwd: s3cret and geheim
    "anna:$7$101$0vHvMFlZRbkI93IX$tFNWO2tbSkApSmgwTmGk7zh/cUex4GRqB+r8OQ+5D0689dA6WpQFFb51LCQbTf"
    "IMcxvvVqVH9O2ntThAieBS3Q==\n"
    "bob:$6$eWmafxbiSztnCB68$qBjiLfzHqlf7bTl6c2phq9aSyaShWQp2XZtIiU91EB7Y++1w1d+j9BKnq33hEZ+n4FB"
    "ht9/nK16w/c9VK/DYgg==\n"
)
NOBODY, ANNA, WRONG = (None, None), ("anna", "s3cret"), ("anna", "wrong")
ACCEPTED, REFUSED = 0, 0x87


def run(*arguments):
    return subprocess.run([QUELEA, *map(str, arguments)], capture_output=True, text=True)


def prepare(name, certs, directory):
    """The sample in a directory, with the files that it names."""
    for path in (SAMPLES / name).iterdir():
        text = path.read_text().replace("{dir}", str(directory))
        (directory / path.name).write_text(text)
    for path in Path(certs).iterdir():
        shutil.copy(path, directory)
    (directory / "passwd").write_text(PASSWORDS)
    return directory / "mosquitto.conf"


def compare(name, directory, output):
    for path in sorted(output.glob("*.toml")):
        text = path.read_text().replace(str(directory), "{dir}")
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
    text = re.sub(r'(?m)^(url = "\w+://[^/"]*):\d+"', r'\1:0"', text)
    files = {path.name: path.read_text() for path in output.iterdir() if path.suffix != ".sock"}
    del files["quelea.toml"]
    # The test reads the log from standard error.
    return start(text, files, environment={"QUELEA_log__target": "stderr"})


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
    "go-auth": [("tcp", 0, ANNA, ACCEPTED), ("tcp", 0, NOBODY, REFUSED)],
    "pattern-deny": [("tcp", 0, ANNA, ACCEPTED), ("tcp", 0, NOBODY, REFUSED)],
    "local-only": [("tcp", 0, NOBODY, ACCEPTED)],
}


@pytest.mark.parametrize("name", SERVED)
def test_a_configuration_of_mosquitto_is_carried_over_and_served(name, start, certs, tmp_path):
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


def test_names_from_certificates_are_carried_over(start, certs, tmp_path):
    config, output = prepare("client-certificates", certs, tmp_path), tmp_path / "output"
    done = run("import", config, "--output", output)
    assert done.returncode == 0, done.stderr
    compare("client-certificates", tmp_path, output)
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


@pytest.mark.parametrize("name", ["dynamic-security", "pre-shared-keys"])
def test_rights_that_cannot_be_carried_over_are_never_dropped(name, certs, tmp_path):
    config, output = prepare(name, certs, tmp_path), tmp_path / "output"
    done = run("import", config, "--output", output)
    assert done.returncode == 1 and "rights differ" in done.stderr and not output.exists()
    done = run("import", config, "--output", output, "--accept-differences")
    assert done.returncode == 0, done.stderr
    compare(name, tmp_path, output)
    done = run("import", config, "--output", output, "--accept-differences")
    assert done.returncode == 1 and "exists" in done.stderr


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
