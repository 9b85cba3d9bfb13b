"""Names that HTTP libraries rewrite in an address: each call reaches the client that it names."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest

from broker import PATIENCE_SECS, QUELEA
from test_api import CONFIG, Api
from wire import Peer

NAMES = [
    ".", "..", "...", "%2e%2e", "..%2f", "../..", "/", "a/../b", "a?b=1", "a#b", "a b+c", "a&b=c",
    "..;/x", "\\..\\", "line\u2028end", "par\u2029end", "disconnect", "subscriptions", "%", "é",
]

FETCH = """
const [method, url, authorization] = process.argv.slice(1);
fetch(url, { method, headers: { Authorization: authorization } })
  .then(async (answer) => console.log(JSON.stringify([answer.status, await answer.text()])));
"""


def by_curl(method, url, authorization):
    command = ["curl", "-s", "-X", method, "-H", f"Authorization: {authorization}"]
    command += ["-w", "\n%{http_code}", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECS)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def by_fetch(method, url, authorization):
    command = ["node", "-e", FETCH, method, url, authorization]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECS)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


def by_urllib(method, url, authorization):
    request = urllib.request.Request(url, method=method)
    request.add_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def served(start):
    broker = start(CONFIG)
    return broker, Api(broker)


@pytest.mark.parametrize("send", [by_curl, by_fetch, by_urllib])
def test_each_library_reaches_the_client_that_is_named(served, send):
    broker, api = served
    peers = {name: Peer(broker.port()).accepted(client_id=name) for name in NAMES}
    left = dict(peers)
    for name in NAMES:
        query = urllib.parse.urlencode({"client_id": name, "namespace": "default"})
        url = f"{api.base}/client?{query}"
        status, text = send("GET", url, api.authorization)
        assert status == 200 and json.loads(text)["client_id"] == name
        for part in ("subscriptions", "namespaces"):
            query = urllib.parse.urlencode({"client_id": name})
            status, text = send("GET", f"{api.base}/client/{part}?{query}", api.authorization)
            rows = [{"namespace": "default", "connected": True}] if part == "namespaces" else []
            assert (status, json.loads(text)["items"]) == (200, rows)
        query = urllib.parse.urlencode({"client_id": name, "namespace": "default"})
        url = f"{api.base}/client/disconnect?{query}"
        assert send("POST", url, api.authorization) == (204, "")
        left.pop(name).expect_disconnect(0x98)
        assert {row["client_id"] for row in api.all("/clients", limit=100)} == set(left)


# Encoded dots are shortened by fetch, and reach the client that they name with curl.
SHORTENED = [(by_curl, ["..", "."]), (by_fetch, ["..", ".", "%2e%2e", "%2E", ".%2e"])]


@pytest.mark.parametrize(("send", "shortened"), SHORTENED)
def test_a_shortened_address_disconnects_nobody(served, send, shortened):
    broker, api = served
    names = ["..", ".", "one", "two"]
    peers = [Peer(broker.port()).accepted(client_id=name) for name in names]
    for name in shortened:
        for rest in ("/disconnect?namespace=default", "/disconnect", "/disconnect?ban_secs=1", ""):
            for method in ("POST", "DELETE"):
                status, text = send(method, f"{api.base}/clients/{name}{rest}", api.authorization)
                assert 400 <= status < 500, (name, rest, text)
    for peer in peers:
        peer.ping()
    assert len(api.all("/clients")) == len(names)


def test_all_clients_are_disconnected_only_if_the_call_says_so(served):
    broker, api = served
    peers = [Peer(broker.port()).accepted(client_id=name) for name in ("one", "two")]
    for query in ({}, {"namespace": "default"}, {"namespace": "default", "all": "false"}):
        assert "all=true" in api("POST", "/disconnect", status=400, **query)["detail"]
    both = api("POST", "/disconnect", status=400, all="true", client_id="one")
    assert "exclude" in both["detail"]
    peers[0].ping()
    assert api("POST", "/disconnect", client_id="on") == {"disconnected": 1}
    assert api("POST", "/disconnect", namespace="default", all="true") == {"disconnected": 1}
    peers[1].expect_disconnect(0x98)


def test_ctl_reaches_the_client_that_is_named(served):
    broker, _ = served

    def ctl(*words):
        command = [QUELEA, "ctl", "--data", str(broker.data), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECS)

    names = ["..", ".", "a/../b", "%2e%2e", "other"]
    peers = {name: Peer(broker.port()).accepted(client_id=name) for name in names}
    for name in names[:-1]:
        assert json.loads(ctl("--json", "clients", "show", name).stdout)["client_id"] == name
        assert ctl("subs", name).returncode == 0
        assert ctl("may", name, "publish", "a").returncode == 0
        assert ctl("clients", "kick", name).returncode == 0
        peers[name].expect_disconnect(0x98)
    peers["other"].ping()
    alone = ctl("clients", "kick", "--namespace", "default")
    assert alone.returncode == 1 and "all=true" in alone.stderr
    peers["other"].ping()
    assert ctl("clients", "kick", "--namespace", "default", "--all").stdout == "disconnected: 1\n"
    peers["other"].expect_disconnect(0x98)


USERS = CONFIG + """
[auth]
password_file = "{dir}/users"
[[namespaces]]
name = ".."
[[authentication]]
name = "devices"
kind = "registry"
registry_file = "{dir}/devices.json"
"""


def test_users_registered_clients_and_namespaces_with_such_names(start):
    broker = start(USERS, files={"users": "", "devices.json": "[]\n"})
    api = Api(broker)
    for name in ("..", ".", "a/../b"):
        encoded = urllib.parse.urlencode({"username": name})
        api("PUT", f"/user?{encoded}", {"password": "x"}, status=204)
        assert [row["username"] for row in api.all("/users")] == [name]
        api("DELETE", f"/user?{encoded}", status=204)
        assert api.all("/users") == []
        encoded = urllib.parse.urlencode({"name": name})
        api("PUT", f"/registry/client?{encoded}", {})
        api("POST", f"/registry/client/disable?{encoded}", status=204)
        assert api("GET", f"/registry/client?{encoded}")["state"] == "Disabled"
        api("POST", f"/registry/client/enable?{encoded}", status=204)
        api("DELETE", f"/registry/client?{encoded}", status=204)
        assert api.all("/registry/clients") == []
        api("POST", "/bans", {"kind": "client", "who": name, "namespace": "*"})
        api("DELETE", "/bans", status=204, kind="client", who=name, namespace="*")
    assert api("GET", "/namespace?name=..")["name"] == ".."
    assert api("POST", "/namespace/suspend?name=..")["state"] == "suspended"
    assert api("POST", "/namespace/resume?name=..")["state"] == "open"
