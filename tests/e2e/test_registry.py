"""Clients that are registered with attributes and certificates, as in Event Grid."""

import hashlib
import json
import socket
import ssl
import subprocess

import pytest

from broker import QUELEA
from test_access import may_publish, may_subscribe
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
