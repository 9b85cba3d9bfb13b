"""Configurations of mosquitto, served by the installed mosquitto and, imported, by the broker: both
admit the same clients, and deliver the same messages."""

import itertools
import re
import socket
import ssl
import subprocess

import pytest

import wire
from broker import PATIENCE_SECS, QUELEA
from test_import import PASSWORDS, SAMPLES, free_port, mosquitto, serve

NOBODY = (None, None)
ANNA, BOB = ("anna", "s3cret"), ("bob", "geheim")
CLIENTS = {
    "nobody": NOBODY,
    "anna": ANNA,
    "bob": BOB,
    "anna with a wrong password": ("anna", "wrong"),
    "anna without a password": ("anna", None),
    "a stranger": ("eve", "x"),
    "an empty name": ("", None),
    "an empty name with a password": ("", "x"),
}
TOPICS = [
    "open/a", "open/a/b", "home/anna", "home/anna/x", "home/bob", "by/anna/x", "tele/c-anna/state",
    "secret/a", "$other/a", "none",
]  # fmt: skip
FILTERS = ["#", "$other/#"]

ACL = """# All that clients without a name may do.
topic read open/#
topic write open/a
user anna
topic home/anna/#
topic deny home/anna/x
user bob
topic readwrite #
topic deny secret/#
pattern write tele/%c/state
pattern by/%u/#
"""
OPEN = "allow_anonymous true\n"
CLOSED = "allow_anonymous false\npassword_file {dir}/passwd\n"
LOCAL = "listener {p0} 127.0.0.1\n"
TWO = "listener {p0} 127.0.0.1\nmax_connections 50\nlistener {p1} 127.0.0.1\n"
OWN = "per_listener_settings true\n"

# The text of a form, and files that it names.
FORMS = {
    "open": (LOCAL + OPEN, {}),
    "nothing said": (LOCAL, {}),
    "closed": (LOCAL + CLOSED, {}),
    "open beside passwords": (LOCAL + OPEN + "password_file {dir}/passwd\n", {}),
    "trailing words": (
        "listener {p0} 127.0.0.1 # the port\nallow_anonymous true # x\nmax_connections 10 x\n"
        "protocol mqtt # y\nmax_keepalive 60 # z\nlog_type all x\n",
        {},
    ),
    "numbers as flags": (LOCAL + "allow_anonymous 1\npersistence 0 # x\n", {}),
    "aliases": (LOCAL + OPEN + "maximum_qos 1\nretained_persistence false\nretry_interval x\n", {}),
    "port and listener": ("port {p0}\nbind_address 127.0.0.1\n" + OPEN + "listener {p1} 127.0.0.1\n", {}),
    "access file": (LOCAL + OPEN + "password_file {dir}/passwd\nacl_file {dir}/acl\n", {"acl": ACL}),
    "access file, closed": (LOCAL + CLOSED + "acl_file {dir}/acl\n", {"acl": ACL}),
    "access file without users": (
        LOCAL + OPEN + "acl_file {dir}/acl\n",
        {"acl": "topic read open/#\ntopic write open/a\npattern tele/%c/state\n"},
    ),
    "pattern deny": (
        LOCAL + OPEN + "password_file {dir}/passwd\nacl_file {dir}/acl\n",
        {"acl": ACL + "pattern deny open/a/#\n"},
    ),
    "own settings": (OWN + LOCAL + OPEN + "listener {p1} 127.0.0.1\n" + CLOSED, {}),
    "own access files": (
        OWN + LOCAL + OPEN + "acl_file {dir}/acl\npassword_file {dir}/passwd\n"
        "listener {p1} 127.0.0.1\n" + CLOSED,
        {"acl": ACL},
    ),
    "own access file without passwords": (
        OWN + LOCAL + OPEN + "acl_file {dir}/acl\nlistener {p1} 127.0.0.1\n" + OPEN,
        {"acl": "topic read open/#\ntopic write open/a\n"},
    ),
    "included": (
        "include_dir {dir}/conf.d\n",
        {"conf.d/a.conf": LOCAL, "conf.d/b.conf": OPEN, "conf.d/c.txt": "nonsense\n"},
    ),
    "options behind an include": (
        OWN + LOCAL + "include_dir {dir}/conf.d\n" + OPEN,
        {"conf.d/a.conf": "max_queued_messages 500\n"},
    ),
    "a listener in an included file": (
        OWN + "include_dir {dir}/conf.d\n" + LOCAL + CLOSED,
        {"conf.d/a.conf": "listener {p1} 127.0.0.1\n" + OPEN},
    ),
    "an included file begins at the default listener": (
        OWN + LOCAL + "include_dir {dir}/conf.d\n",
        {"conf.d/a.conf": "allow_anonymous true\n"},
    ),
    "QoS 0 for offline clients": (LOCAL + OPEN + "queue_qos0_messages true\n", {}),
    "two listeners": (TWO + OPEN, {}),
    "dynamic security": (
        LOCAL + "allow_anonymous true\nplugin {plugin}\nplugin_opt_config_file {dir}/d.json\n",
        {},
    ),
}
# This listener has no password file, and another one has: here a name needs its password on all.
UNVERIFIED = {"own settings": 0, "a listener in an included file": 1}
WRONG = ["anna with a wrong password", "anna without a password", "a stranger"]
PLUGIN = "/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so"


class Client:
    """A connection. `admitted`: the CONNACK accepts it."""

    def __init__(self, stream, name, user, version=4):
        self.peer = wire.Peer(stream, version)
        self.ids = itertools.count(1)
        self.peer.send(wire.connect(name, version, user=user[0], password=user[1]))
        got = self.peer.recv()
        self.admitted = got is not None and got[0] == wire.CONNACK and got[1][1] == 0

    def wait(self, first):
        """The messages that come before the packet that begins with this byte."""
        messages = []
        while True:
            got = self.peer.recv()
            assert got is not None, f"the connection ended, {first:#x} was expected"
            if got[0] == first:
                return messages
            assert got[0] & 0xF0 == wire.PUBLISH, got
            kind, body = got
            qos, length = kind >> 1 & 3, int.from_bytes(body[:2], "big")
            messages.append((body[2 : 2 + length].decode(), qos))
            if qos:
                self.peer.send(wire.packet(wire.PUBACK, body[2 + length : 4 + length]))

    def subscribe(self, topic_filter, qos=1):
        self.peer.send(wire.subscribe(topic_filter, qos, next(self.ids), version=4))
        return self.wait(wire.SUBACK)

    def publish(self, topic, payload="x"):
        self.peer.send(wire.publish(topic, payload, 1, next(self.ids), version=4))
        return self.wait(wire.PUBACK)

    def received(self):
        """What has come: nothing is on its way behind the answer to a PINGREQ."""
        self.peer.send(wire.packet(0xC0))
        return self.wait(wire.PINGRESP)


def admitted(ports):
    """Who comes in, on each port, in both versions."""
    found = set()
    for port, (who, user), version in itertools.product(ports, CLIENTS.items(), (4, 5)):
        client = Client(port, "c-probe", user, version)
        client.peer.close()
        if client.admitted:
            found.add((ports.index(port), who, version))
    return found


def delivered(port, names):
    """The topics that each client receives of what each one publishes."""
    found = {}
    clients = {name: Client(port, f"c-{name}", CLIENTS[name]) for name in names}
    for client in clients.values():
        for topic_filter in FILTERS:
            client.subscribe(topic_filter)
    for name, client in clients.items():
        own = [message for topic in TOPICS for message in client.publish(topic)]
        for other, receiver in clients.items():
            more = own if other == name else []
            messages = more + receiver.received()
            found[name, other] = sorted(topic for topic, _qos in messages)
    for client in clients.values():
        client.peer.close()
    return found


def write(directory, text, files):
    """The configuration, with its files; and its ports."""
    has_two = "{p1}" in "".join([text, *files.values()])
    ports = [free_port() for _ in range(2 if has_two else 1)]
    values = {"{dir}": str(directory), "{p0}": str(ports[0]), "{p1}": str(ports[-1])}
    values["{plugin}"] = PLUGIN
    (directory / "passwd").write_text(PASSWORDS)
    for name, own in {**files, "mosquitto.conf": "user root\n" + text}.items():
        for key, value in values.items():
            own = own.replace(key, value)
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(own)
    return directory / "mosquitto.conf", ports


def imported(config, output):
    done = subprocess.run(
        [QUELEA, "import", config, "--output", output], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return output


def in_order_of(ports, output, broker):
    """The ports of the broker's listeners, in the order of those of mosquitto."""
    urls = re.findall(r'(?m)^url = "tcp://[^"]*:(\d+)"', (output / "quelea.toml").read_text())
    return [broker.port("tcp", urls.index(str(port))) for port in ports]


@pytest.mark.parametrize("form", FORMS)
def test_the_same_clients_get_the_same_messages(form, start, tmp_path):
    text, files = FORMS[form]
    if form == "dynamic security":
        files = {"d.json": (SAMPLES / "dynamic-security" / "dynamic-security.json").read_text()}
    config, ports = write(tmp_path, text, files)
    output = imported(config, tmp_path / "output")
    broker = serve(start, output)
    own = in_order_of(ports, output, broker)
    with mosquitto(config, ports[0]):
        expected = admitted(ports)
        at = UNVERIFIED.get(form)
        expected = {each for each in expected if each[0] != at or each[1] not in WRONG}
        assert admitted(own) == expected
        # Without a password file mosquitto takes any name, and here it counts for nothing.
        has_names = "password_file" in text or form == "dynamic security"
        names = ["nobody", "anna", "bob"] if has_names else ["nobody"]
        names = [name for name in names if (0, name, 4) in expected]
        assert delivered(own[0], names) == delivered(ports[0], names)


# Topics of a bridge, and what is published here.
BRIDGES = {
    "one topic": "topic a/# out 1\n",
    "the higher QoS of two": "topic a/# out 0\ntopic a/b out 1\n",
    "the lower line first": "topic a/b out 1\ntopic a/# out 0\n",
    "twice the same": "topic a/b out 0\ntopic a/b out 1\n",
    "quoted": 'topic "a" out 1\n',
    "prefixes": "topic b out 1 a/ x/\ntopic # out 0 c/ y/\n",
    "comments": "topic a/# OUT 1 # x\n",
}
SENT = ["a/b", "a/c", "a", '"a"', "b", "c/d", "end/x"]


@pytest.mark.parametrize("form", BRIDGES)
def test_a_bridge_relays_the_same_messages(form, start, tmp_path):
    remote, other = free_port(), tmp_path / "remote.conf"
    other.write_text(f"listener {remote} 127.0.0.1\nallow_anonymous true\n")
    bridge = f"connection c1 # x\naddress 127.0.0.1:{remote}\n{BRIDGES[form]}topic end/# out 1\n"
    config, ports = write(tmp_path, LOCAL + OPEN + bridge, {})
    broker_of = {"mosquitto": None, "broker": imported(config, tmp_path / "output")}
    relayed = {}
    for which, output in broker_of.items():
        with mosquitto(other, remote):
            if output is None:
                with mosquitto(config, ports[0]):
                    relayed[which] = relay(ports[0], remote)
            else:
                relayed[which] = relay(serve(start, output).port(), remote)
    assert relayed["broker"] == relayed["mosquitto"]


def relay(port, remote):
    """What the remote gets, with its QoS, and the client ID of the bridge."""
    far = Client(remote, "far", NOBODY)
    far.subscribe("#", 2)
    near = Client(port, "near", NOBODY)
    # Until the bridge has connected, nothing crosses.
    while not [topic for topic, _ in far.received() if topic == "end/ready"]:
        near.publish("end/ready")
    for topic in SENT:
        near.publish(topic)
    found = []
    while ("end/x", 1) not in found:
        found += far.received()
    return sorted(message for message in found if message[0] != "end/ready"), state_of(remote)


def state_of(remote):
    """The topics of the states of bridges: one may come behind the first messages."""
    client = Client(remote, "states", NOBODY)
    client.subscribe("$SYS/broker/connection/+/state", 1)
    while not (messages := client.received()):
        pass
    return {topic for topic, _ in messages}


CERTIFIED = {
    "names of certificates": "require_certificate true\nuse_identity_as_username true\n",
    "subjects of certificates": "require_certificate true\nuse_subject_as_username true\n",
    "certificates required": "require_certificate true\n" + OPEN,
    "no certificates": OPEN,
    "names without certificates": "use_identity_as_username true\n" + OPEN,
}


@pytest.mark.parametrize("form", CERTIFIED)
@pytest.mark.parametrize("server", ["server", "server-1"])
def test_the_same_certificates_are_accepted(form, server, start, tmp_path, certs):
    """`-1`: X.509 version 1, as `openssl x509 -req` of OpenSSL 3.0 makes them."""
    for name, subject in [("server-1", "/CN=localhost"), ("client-1", "/O=quelea/CN=anna")]:
        version_1(certs, tmp_path, name, subject)
    text = (
        f"{LOCAL}cafile {{dir}}/all.crt\ncertfile {{dir}}/{server}.crt\n"
        f"keyfile {{dir}}/{server}.key\n{CERTIFIED[form]}"
    )
    itself = self_signed(tmp_path)
    files = {path.name: path.read_text() for path in certs.iterdir() if path.suffix in (".crt", ".key")}
    files["all.crt"] = files["ca.crt"] + itself
    # A form whose only listener admits nobody needs another one.
    config, ports = write(tmp_path, text + "listener {p1} 127.0.0.1\n", files)
    output = imported(config, tmp_path / "output")
    broker = serve(start, output)
    has_tls = any(url.startswith("tls://") for url in broker.urls)
    with mosquitto(config, ports[1]):
        for name in (None, "client", "client-1", "stranger", "own"):
            expected = comes_in(ports[0], tmp_path, name)
            found = has_tls and comes_in(broker.port("tls"), tmp_path, name)
            assert found == expected, name


def version_1(certs, directory, name, subject):
    for arguments in (
        ["req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", "a.csr", "-subj", subject],
        ["x509", "-req", "-in", "a.csr", "-CA", certs / "ca.crt", "-CAkey", certs / "ca.key",
         "-CAcreateserial", "-CAserial", directory / "serial", "-out", f"{name}.crt", "-days", "2"],
    ):  # fmt: skip
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
    shown = subprocess.run(
        ["openssl", "x509", "-in", directory / f"{name}.crt", "-text", "-noout"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "Version: 1 (0x0)" in shown.stdout


def self_signed(directory):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "own.key", "-out",
         "own.crt", "-days", "2", "-subj", "/CN=own"],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    return (directory / "own.crt").read_text()


def comes_in(port, directory, name):
    """Is a client with this certificate admitted?"""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if name:
        context.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_SECS) as plain:
            return Client(context.wrap_socket(plain), "c", NOBODY).admitted
    except OSError:
        return False


def test_a_server_certificate_of_version_1_is_noted(start, tmp_path, certs):
    """It works, and the report says what to do for clients that refuse it."""
    version_1(certs, tmp_path, "server-1", "/CN=localhost")
    text = f"{LOCAL}certfile {{dir}}/server-1.crt\nkeyfile {{dir}}/server-1.key\n{OPEN}"
    config, _ports = write(tmp_path, text, {})
    output = tmp_path / "output"
    done = subprocess.run(
        [QUELEA, "import", config, "--output", output], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    checked = subprocess.run(
        [QUELEA, "serve", "--config", output / "quelea.toml", "--check-config"],
        capture_output=True, text=True,
    )  # fmt: skip
    for answer in (done.stdout, checked.stdout):
        assert "X.509 version 1" in answer and "-extfile" in answer, answer
