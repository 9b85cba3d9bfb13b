"""Clients that are registered with attributes and certificates, as in Event Grid."""

import hashlib
import json
import socket
import ssl
import subprocess
import threading

import pytest

from broker import PATIENCE_SECS, QUELEA
from test_access import may_publish, may_subscribe
from test_api import Api, ctl
from test_identity import NOT_AUTHORIZED
from wire import Peer

CONFIG = """
[[authentication]]
name = "clients"
kind = "registry"
registry_file = "{dir}/clients.json"
name_sources = ["subject"]
[[listeners]]
url = "tls://127.0.0.1:0"
[listeners.tls]
certificate = "CERTS/server.crt"
key = "CERTS/server.key"
client_ca = "CERTS/ca.crt"
client_auth = "optional"
[access]
policy_file = "{dir}/policy"
[auth]
password_file = "{dir}/passwords"
[api]
listen = "http"
"""

POLICY = """
[[groups]]
name = "pumps"
query = "attributes.type IN ['pump','valve'] and attributes.floor <= 5"
[[spaces]]
name = "own"
templates = ["${client.authenticationName}/${client.attributes.type}/#"]
[[bindings]]
group = "pumps"
space = "own"
permission = "publish"
"""


def der(path):
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def registered(name, scheme, **more):
    own = {"validationScheme": scheme, **more}
    attributes = {"type": "pump", "floor": 3}
    return {
        "name": f"r-{name}", "type": "Microsoft.EventGrid/namespaces/clients",
        "properties": {
            "authenticationName": name, "state": "Enabled", "attributes": attributes,
            "clientCertificateAuthentication": own,
        },
    }


@pytest.fixture
def registry(start, certs, passwords):
    def make(clients):
        files = {"clients.json": json.dumps(clients), "policy": POLICY, "passwords": passwords}
        return start(CONFIG.replace("CERTS", str(certs)), files)

    return make


def peer(broker, certs, certificate="client"):
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.check_hostname = False
    if certificate:
        context.load_cert_chain(certs / f"{certificate}.crt", certs / f"{certificate}.key")
    stream = socket.create_connection(("127.0.0.1", broker.port("tls")), 20)
    return Peer(context.wrap_socket(stream))


def reason(broker, certs, certificate="client", **options):
    with peer(broker, certs, certificate) as one:
        return one.connect(**options)[1]


def test_a_registered_client_shows_its_certificate_and_has_its_attributes(registry, certs):
    thumbprint = hashlib.sha256(der(certs / "client.crt")).hexdigest().upper()
    broker = registry([
        registered("anna", "SubjectMatchesAuthenticationName"),
        registered("pump-1", "ThumbprintMatch", allowedThumbprints=[thumbprint]),
        registered("pump-2", "ThumbprintMatch", allowedThumbprints=["0" * 64]),
        registered("a.example", "DnsMatchesAuthenticationName"),
    ])
    for user, name in ((None, "anna"), ("ANNA", "anna"), ("Pump-1", "pump-1")):
        with peer(broker, certs).accepted(client_id="c1" + name, user=user) as one:
            assert may_publish(one, f"{name}/pump/a") and not may_publish(one, f"{name}/valve/a")
            assert not may_publish(one, "pump-2/pump/a") and not may_subscribe(one, f"{name}/#")
    for user in ("pump-2", "a.example", "nobody"):
        assert reason(broker, certs, user=user) == NOT_AUTHORIZED, user
    assert reason(broker, certs, None, user="pump-1") == NOT_AUTHORIZED, "no certificate"
    assert reason(broker, certs, "nameless") == NOT_AUTHORIZED
    line = broker.wait_for_log(lambda event: "does not match" in event.get("detail", ""))
    assert line


def test_a_user_of_the_password_file_has_attributes_too(registry, certs):
    users = [
        {"name": "anna", "attributes": {"type": "valve", "floor": 1}},
        {"name": "bruno", "attributes": {"type": "pump", "floor": 1}, "state": "Disabled"},
    ]
    broker = registry(users)
    with peer(broker, certs, None).accepted(user="anna", password="secret") as one:
        assert may_publish(one, "anna/valve/a") and not may_publish(one, "anna/pump/a")
    assert reason(broker, certs, None, user="bruno", password="geheim") == NOT_AUTHORIZED
    broker.wait_for_log(lambda event: "disabled in the registry" in event.get("detail", ""))
    assert reason(broker, certs, None, user="anna", password="wrong") == NOT_AUTHORIZED


def test_a_registry_is_read_again_as_a_whole_or_not_at_all(registry, certs):
    broker = registry([registered("anna", "SubjectMatchesAuthenticationName")])
    path = broker.directory / "clients.json"
    assert reason(broker, certs, user="anna") == 0
    path.write_text(json.dumps([registered("anna", "Whatever")]))
    broker.reload()
    broker.wait_for_log(lambda event: "unknown validationScheme" in event.get("error", ""))
    assert reason(broker, certs, user="anna") == 0
    disabled = registered("anna", "SubjectMatchesAuthenticationName")
    disabled["properties"]["state"] = "Disabled"
    path.write_text(json.dumps({"value": [disabled]}))
    broker.reload()
    broker.wait_for_log(lambda event: event.get("message") == "passwords and keys reloaded")
    assert reason(broker, certs, user="anna") == NOT_AUTHORIZED


def test_a_change_by_the_api_is_in_force_and_ends_connections(registry, certs):
    thumbprint = hashlib.sha256(der(certs / "client.crt")).hexdigest()
    own = {"validationScheme": "ThumbprintMatch", "allowedThumbprints": [thumbprint]}
    broker = registry({"value": [registered("anna", "SubjectMatchesAuthenticationName")]})
    api = Api(broker)
    path = "/registry/clients/pump%2F1"
    body = {"clientCertificateAuthentication": own, "attributes": {"type": "pump", "floor": 1}}
    put = api("PUT", path, body)
    assert (put["authenticationName"], put["state"]) == ("pump/1", "Enabled")
    assert [row["authenticationName"] for row in api.all("/registry/clients", limit=1)] == ["anna", "pump/1"]
    other = peer(broker, certs).accepted(client_id="other", user="anna")

    def connected():
        return peer(broker, certs).accepted(client_id="one", user="PUMP/1")

    # A thumbprint that is added ends nothing; attributes, and one that is taken away, do.
    one = connected()
    body["clientCertificateAuthentication"] = {**own, "allowedThumbprints": ["ab" * 32, thumbprint]}
    api("PUT", path, body)
    one.ping()
    api("PUT", path, {**body, "attributes": {"type": "pump", "floor": 2}})
    one.expect_disconnect(NOT_AUTHORIZED)
    one = connected()
    api("PUT", path, {"clientCertificateAuthentication": {**own, "allowedThumbprints": ["ab" * 32]}})
    one.expect_disconnect(NOT_AUTHORIZED)
    assert reason(broker, certs, user="pump/1") == NOT_AUTHORIZED
    api("PUT", path, body)
    one = connected()
    ctl(broker, "registry", "disable", "pump/1")
    one.expect_disconnect(NOT_AUTHORIZED)
    assert reason(broker, certs, user="pump/1") == NOT_AUTHORIZED
    assert "pump/1" in ctl(broker, "registry", "list", "--disabled")
    assert "anna" not in ctl(broker, "registry", "list", "--disabled")
    ctl(broker, "registry", "enable", "pump/1")
    one = connected()
    api("DELETE", path, status=204)
    one.expect_disconnect(NOT_AUTHORIZED)
    broker.wait_for_log(lambda event: event.get("reason") == "credential_revoked")
    api("GET", path, status=404)
    ctl(broker, "registry", "delete", "pump/1", code=5)
    other.ping()
    assert "value" in json.loads((broker.directory / "clients.json").read_text())
    changed = [row["call"] for row in api.all("/audit")]
    assert "/registry/client/disable?name=pump%2F1" in changed

    for wrong, detail in (
        ({"state": "Off"}, "Enabled or Disabled"),
        ({"colour": 1}, "unknown member"),
        ({"authenticationName": "b"}, "the path"),
    ):
        assert detail in api("PUT", path, wrong, status=400)["detail"]
    api("GET", "/registry/clients", status=400, registry="other")
    api("GET", "/registry/clients", status=400, cursor="/")


def test_a_reload_ends_connections_that_the_file_no_longer_allows(registry, certs):
    broker = registry([{"name": "anna", "attributes": {"type": "valve", "floor": 1}}])
    path = broker.directory / "clients.json"
    anna = peer(broker, certs, None).accepted(client_id="a", user="anna", password="secret")
    bruno = peer(broker, certs, None).accepted(client_id="b", user="bruno", password="geheim")
    path.write_text(json.dumps([{"name": "anna", "attributes": {"type": "pump", "floor": 1}}]))
    broker.reload()
    anna.expect_disconnect(NOT_AUTHORIZED)
    bruno.ping()
    path.write_text(json.dumps([{"name": "BRUNO", "attributes": {}, "state": "Disabled"}]))
    broker.reload()
    bruno.expect_disconnect(NOT_AUTHORIZED)


def test_a_client_that_connects_while_it_is_disabled_does_not_stay(registry, certs):
    broker = registry([registered("anna", "SubjectMatchesAuthenticationName")])
    api = Api(broker)
    for _ in range(5):
        peers, is_over, are_some = [], threading.Event(), threading.Event()

        def connect_on():
            while not is_over.is_set():
                one = peer(broker, certs)
                if one.connect(client_id=f"c{len(peers)}", user="anna")[1] == 0:
                    peers.append(one)
                if len(peers) == 5:
                    are_some.set()

        thread = threading.Thread(target=connect_on)
        thread.start()
        assert are_some.wait(PATIENCE_SECS)
        api("POST", "/registry/clients/anna/disable", status=204)
        is_over.set()
        thread.join()
        for one in peers:
            one.expect_disconnect(NOT_AUTHORIZED)
        api("POST", "/registry/clients/anna/enable", status=204)


def test_calls_at_once_and_a_crash_lose_no_change(registry, certs):
    broker = registry([])
    api = Api(broker)
    names = [f"dev-{number}" for number in range(12)]
    put = [
        threading.Thread(target=api, args=("PUT", f"/registry/clients/{name}", {})) for name in names
    ]
    for thread in put:
        thread.start()
    for thread in put:
        thread.join()
    api("POST", "/registry/clients/dev-3/disable", status=204)
    broker.restart("kill")
    rows = Api(broker).all("/registry/clients")
    assert sorted(row["authenticationName"] for row in rows) == sorted(names)
    assert [row["authenticationName"] for row in rows if row["state"] == "Disabled"] == ["dev-3"]
    # A file that somebody has broken is not overwritten.
    path = broker.directory / "clients.json"
    path.write_text("[")
    assert "clients.json" in Api(broker)("PUT", "/registry/clients/x", {}, status=409)["detail"]
    assert path.read_text() == "["


def test_a_namespace_of_event_grid_is_imported(start, certs, tmp_path):
    resources = [
        registered("anna", "SubjectMatchesAuthenticationName"),
        {"name": "pumps", "query": "attributes.type IN ['pump'] AND attributes.floor <= 5"},
        {"name": "own", "topicTemplates": ["${client.authenticationName|.x}/#"]},
        {"name": "b1", "clientGroupName": "pumps", "topicSpaceName": "own", "permission": "Publisher"},
        {"name": "b2", "clientGroupName": "$all", "topicSpaceName": "own", "permission": "Subscriber"},
    ]
    source, output = tmp_path / "namespace.json", tmp_path / "out"
    source.write_text(json.dumps(resources))

    def run():
        command = [QUELEA, "import", "--from", "event-grid", str(source), "--output", str(output)]
        return subprocess.run(command, capture_output=True, text=True)

    done = run()
    assert "cannot use them yet" in done.stderr, "the certificates are not there"
    for name, file in (("server.crt", "server"), ("server.key", "server"), ("client-ca.crt", "ca")):
        (output / name).write_text((certs / f"{file}{name[-4:]}").read_text())
    config = (output / "quelea.toml").read_text().replace("*:8883", "127.0.0.1:0")
    config = config.replace('"policy.toml"', f'"{output}/policy.toml"')
    for name in ("clients.json", "server.crt", "server.key", "client-ca.crt"):
        config = config.replace(f'"{name}"', f'"{output}/{name}"')
    broker = start(config)
    with peer(broker, certs).accepted(user="anna") as one:
        assert may_publish(one, "anna.x/a") and not may_publish(one, "bruno.x/a")
        assert may_subscribe(one, "anna.x/#") and not may_subscribe(one, "bruno.x/#")
    resources[1]["query"] = "attributes.type LIKE 'pump'"
    source.write_text(json.dumps(resources))
    refused = run()
    assert refused.returncode == 1 and "nothing was written" in refused.stderr


SELF_SIGNED = CONFIG.replace(
    'url = "tls://127.0.0.1:0"\n',
    'url = "tls://127.0.0.1:0"\nregistered_certificates = true\nallow_anonymous = true\n',
).replace('password_file = "{dir}/passwords"\n', 'password_file = "{dir}/passwords"\nallow_anonymous = true\n')


def self_signed(directory, name, days=2):
    """As in the guide of Event Grid: openssl makes it an authority."""
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
        "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", str(days),
    ]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return hashlib.sha256(der(directory / f"{name}.crt")).hexdigest()


@pytest.mark.parametrize("authority", ["optional", "none"])
def test_a_self_signed_certificate_counts_by_its_thumbprint_only(start, certs, passwords, tmp_path, authority):
    thumbprints = {name: self_signed(tmp_path, name) for name in ("pump", "spare", "eve", "anna")}
    own = [thumbprints["spare"].upper(), thumbprints["pump"]]
    clients = [
        registered("pump", "ThumbprintMatch", allowedThumbprints=own),
        # Somebody has made a certificate with the name of another client.
        registered("anna", "SubjectMatchesAuthenticationName"),
        registered("other", "ThumbprintMatch", allowedThumbprints=[thumbprints["anna"]]),
    ]
    files = {"clients.json": json.dumps(clients), "policy": POLICY, "passwords": passwords}
    config = SELF_SIGNED.replace("CERTS", str(certs))
    if authority == "none":
        config = config.replace(f'client_ca = "{certs}/ca.crt"\n', "").replace("optional", "require")
    broker = start(config, files)

    def shown(name):
        context = ssl.create_default_context(cafile=certs / "ca.crt")
        context.check_hostname = False
        context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        stream = socket.create_connection(("127.0.0.1", broker.port("tls")), 20)
        return Peer(context.wrap_socket(stream))

    def answer(name, **options):
        with shown(name) as one:
            return one.connect(**options)[1]

    for name in ("pump", "spare"):
        with shown(name).accepted(user="pump") as one:
            assert may_publish(one, "pump/pump/a") and not may_publish(one, "anna/pump/a")
    # The handshake accepts it: nothing else is to let it in.
    assert answer("anna", user="other") == 0
    assert answer("anna", user="anna") == NOT_AUTHORIZED, "names in it are not verified"
    assert answer("anna") == NOT_AUTHORIZED, "anonymous clients are admitted, but not with it"
    assert answer("anna", user="anna", password="secret") == NOT_AUTHORIZED
    assert answer("pump", user="other") == NOT_AUTHORIZED
    with pytest.raises((OSError, AssertionError)):
        answer("eve", user="pump")
    broker.wait_for_log(lambda event: event["message"] == "handshake failed")
    if authority == "optional":
        assert reason(broker, certs, user="anna") == 0, "issued by the authority"
        assert reason(broker, certs, None) == 0
    # A foreign client, as users have them.
    command = [
        "mosquitto_pub", "-h", "127.0.0.1", "-p", str(broker.port("tls")), "-u", "pump", "-q", "1",
        "-t", "pump/pump/a", "-m", "x", "--cafile", str(certs / "ca.crt"), "--insecure",
        "--cert", str(tmp_path / "pump.crt"), "--key", str(tmp_path / "pump.key"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECS)
    assert done.returncode == 0, done.stderr
    # A thumbprint that is taken away ends the connection, and is refused by the next handshake.
    one = shown("pump").accepted(user="pump")
    clients[0] = registered("pump", "ThumbprintMatch", allowedThumbprints=own[:1])
    (broker.directory / "clients.json").write_text(json.dumps(clients))
    broker.reload()
    one.expect_disconnect(NOT_AUTHORIZED)
    with pytest.raises((OSError, AssertionError)):
        answer("pump", user="pump")
