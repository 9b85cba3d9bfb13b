"""The management API and `quelea ctl`, with real clients beside them."""

import base64
import json
import os
import random
import select
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import PATIENCE_SECS, QUELEA, eventually
from test_clients import Paho
from wire import Peer, fresh

CONFIG = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[api]
listen = "http"
"""

USERS = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[api]
listen = "127.0.0.1:0"
password_file = "{dir}/users"
operators = ["bruno"]
"""


class Api:
    """Asks as whoever `authorization` says; without it by the token of the data directory."""

    def __init__(self, broker, authorization=None, nth=0):
        self.base = f"http://127.0.0.1:{broker.port('http', nth)}/api/v1"
        if authorization is None:
            token = (broker.data / "api.token").read_text().splitlines()[0]
            authorization = f"Bearer {token}"
        self.authorization = authorization

    def __call__(self, method, path, body=None, status=200, headers=None, raw=None, **query):
        """The answer, which has to have this status."""
        if query:
            path += "?" + urllib.parse.urlencode(query)
        data = raw if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method)
        request.add_header("Authorization", self.authorization)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECS) as answer:
                text, found, kind = answer.read(), answer.status, answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            text, found, kind = error.read(), error.code, error.headers["Content-Type"]
        assert found == status, (found, text)
        if status >= 400:
            assert kind == "application/problem+json"
            problem = json.loads(text)
            assert problem["status"] == status and problem["detail"], problem
            return problem
        return json.loads(text) if text else None

    def all(self, path, limit=3, **query):
        """The rows of all pages."""
        rows, cursor = [], None
        while True:
            more = {"cursor": cursor} if cursor else {}
            page = self("GET", path, limit=limit, **query, **more)
            assert len(page["items"]) <= limit
            rows += page["items"]
            cursor = page["cursor"]
            if cursor is None:
                return rows


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def quoted(name):
    return urllib.parse.quote(name, safe="")


@pytest.fixture
def managed(start):
    broker = start(CONFIG)
    return broker, Api(broker)


class Clients:
    """Paho clients that stay away once they are sent away."""

    def __init__(self, broker):
        self.broker = broker
        self.open = {}

    def __call__(self, client_id, **options):
        client = Paho(self.broker, client_id=client_id, reconnect_on_failure=False)
        client.connect(**options)
        self.open[client_id] = client
        return client

    def close(self, client_id):
        self.open.pop(client_id).close()


@pytest.fixture
def client(managed):
    clients = Clients(managed[0])
    yield clients
    for client_id in list(clients.open):
        clients.close(client_id)


def ended(client):
    """The reason code with which the broker has ended a connection."""
    return client.wait("disconnect")[1].value


def audited(broker, count):
    """Who did what came to which status, once so many lines say so."""
    def lines():
        events = [event for event in broker.log if event["message"] == "audit"]
        return [(event["caller"], event["status"]) for event in events]

    eventually(lambda: len(lines()) >= count, "lines of the audit")
    return lines()


def kept():
    """Properties of a session that outlives its connection."""
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 3600
    return properties


def test_clients_are_listed_shown_kicked_and_purged(managed, client):
    broker, api = managed
    names = [f"dev/{number} ä" for number in range(7)]
    clients = {name: client(name) for name in names}
    clients[names[0]].subscribe("vehicles/+/speed", 1)
    assert sorted(row["client_id"] for row in api.all("/clients")) == names
    assert [row["client_id"] for row in api.all("/clients", client_id="dev/3")] == [names[3]]
    assert api.all("/clients", connected="false") == []
    shown = api("GET", f"/clients/{quoted(names[0])}")
    assert shown["connected"] and shown["protocol"] and shown["subscriptions"] == 1
    assert shown["address"].startswith("127.0.0.1:")
    rows = api.all(f"/clients/{quoted(names[0])}/subscriptions")
    assert [(row["filter"], row["qos"], row["share"]) for row in rows] == [
        ("vehicles/+/speed", 1, None)
    ]
    receivers = api.all("/topics/receivers", topic="vehicles/7/speed")
    assert [(row["client_id"], row["allowed"]) for row in receivers] == [(names[0], True)]
    assert api.all("/topics/receivers", topic="vehicles/7/rpm") == []

    api("POST", f"/clients/{quoted(names[1])}/disconnect", status=204)
    assert ended(clients[names[1]]) == 0x98
    api("DELETE", f"/clients/{quoted(names[2])}", status=204)
    assert ended(clients[names[2]]) == 0x98
    problem = api("GET", f"/clients/{quoted(names[2])}", status=404)
    assert names[2] in problem["detail"]
    assert audited(broker, 2) == [("token", 204), ("token", 204)]


def test_what_is_published_arrives_and_is_kept(managed, client):
    broker, api = managed
    topic = fresh("api")
    receiver = client("receiver")
    receiver.subscribe(topic, 1)
    told = api("POST", "/publish", {
        "topic": topic, "payload_base64": "AAH/", "qos": 1, "content_type": "x/y",
        "user_properties": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}],
    })
    assert told["matched"] and told["reason_code"] == 0
    message = receiver.message()
    assert message.payload == b"\x00\x01\xff" and message.qos == 1
    assert message.properties.ContentType == "x/y"
    assert message.properties.UserProperty == [("a", "1"), ("a", "2")]
    told = api("POST", "/publish", {"topic": fresh("nobody"), "qos": 1})
    assert not told["matched"] and told["reason_code"] == 16
    batch = [{"topic": topic, "payload": str(number)} for number in range(20)]
    told = api("POST", "/publish/batch", {"messages": batch})
    assert len(told["results"]) == 20 and told["refused"] == 0
    assert [receiver.message().payload for _ in batch] == [b"%d" % n for n in range(20)]


def test_a_success_survives_kill_9(managed, client):
    broker, api = managed
    topic = fresh("kept")
    client("sleeper", clean_start=False, properties=kept()).subscribe(topic, 1)
    client.close("sleeper")
    eventually(lambda: api.all("/clients", connected="false"))
    told = api("POST", "/publish", {"topic": topic, "payload": "owed", "qos": 1})
    assert told["matched"]
    api("PUT", "/retained/message", {"payload": "on", "qos": 1}, topic="home/mode")
    broker.restart()
    again = Api(broker)
    assert again("GET", "/retained/message", topic="home/mode")["payload"] == "on"
    (row,) = again.all("/clients")
    assert (row["connected"], row["queued_messages"], row["durable"]) == (False, 1, True)
    sleeper = client("sleeper", clean_start=False, properties=kept())
    assert sleeper.message().payload == b"owed"


def test_retained_messages_are_browsed_set_and_cleared(managed):
    _, api = managed
    for number in range(8):
        api("PUT", "/retained/message", {"payload": f"p{number}"}, topic=f"home/{number}")
    rows = api.all("/retained", filter="home/+")
    assert sorted(row["topic"] for row in rows) == [f"home/{number}" for number in range(8)]
    large = "x" * 5000
    api("PUT", "/retained/message", {"payload": large, "qos": 1}, topic="home/large")
    (row,) = api.all("/retained", filter="home/large")
    assert row["payload_bytes"] == 5000 and row["payload"] is None
    assert api("GET", "/retained/message", topic="home/large")["payload"] == large
    api("DELETE", "/retained/message", status=204, topic="home/large")
    api("GET", "/retained/message", status=404, topic="home/large")


def test_groups_with_members_and_lag(managed, client):
    _, api = managed
    for name in ("w1", "w2"):
        client(name).subscribe("$share/workers/jobs/#", 1)
    (group,) = api.all("/groups")
    assert (group["share"], group["filter"], group["members"], group["online"]) == (
        "workers", "jobs/#", 2, 2
    )
    rows = api.all("/groups/members", limit=1, share="workers", filter="jobs/#")
    assert sorted(row["client_id"] for row in rows) == ["w1", "w2"]
    (receiver,) = api.all("/topics/receivers", topic="jobs/1")
    assert receiver["share"] == "workers" and receiver["client_id"] is None
    api("GET", "/groups/members", status=404, share="nobody", filter="jobs/#")


def test_settings_change_while_the_broker_runs(start):
    broker = start(CONFIG + "[limits]\nconnections_max = 50\n")
    api, key = Api(broker), "limits.connections_max"

    def row(name=key):
        return next(row for row in api("GET", "/settings")["items"] if row["key"] == name)

    assert (row()["value"], row()["source"], row()["unit"]) == ("50", "file", "count")
    assert row()["changes_while_running"] and not row("limits.qos_max")["changes_while_running"]
    with Peer(broker.port()) as first:
        first.accepted(client_id="first")
        changed = api("PUT", f"/settings/{key}", {"value": "1"})
        assert (changed["value"], changed["source"]) == ("1", "running")
        # The connection that is open stays, and no other is accepted.
        first.ping()
        with socket.create_connection(("127.0.0.1", broker.port()), PATIENCE_SECS) as second:
            assert second.recv(1) == b""
    assert "must be" in api("PUT", f"/settings/{key}", {"value": "many"}, status=400)["detail"]
    assert api("PUT", "/settings/limits.qos_max", {"value": "1"}, status=409)["fix"]
    api("PUT", "/settings/limits.qos", {"value": "1"}, status=404)
    assert row()["value"] == "1"
    # A reload keeps it, unless the configuration has another value than before.
    assert api("POST", "/reload")["taken_back"] == []
    assert row()["value"] == "1"
    broker.config.write_text(broker.config.read_text().replace("= 50", "= 60"))
    assert api("POST", "/reload")["taken_back"] == [key]
    assert (row()["value"], row()["source"]) == ("60", "file")
    assert "set while running" in ctl(broker, "settings", "set", key, "7")
    assert "60" in ctl(broker, "settings", "reset", key)
    ctl(broker, "settings", "set", "sys.interval_secs", "soon", code=1)
    api("PUT", "/settings/log.level", {"value": "debug"})
    assert api("GET", "/log-level")["level"] == "debug"
    calls = [row["call"] for row in api("GET", "/audit")["items"]]
    assert any(key in call for call in calls)
    broker.restart()
    api = Api(broker)
    assert row()["value"] == "60"


def test_the_broker_tells_of_itself(managed):
    broker, api = managed
    info = api("GET", "/broker")
    assert info["state"] == "ready" and info["resident_bytes"] > 0
    (listener,) = api("GET", "/listeners")["items"]
    assert listener["name"] == "tcp://127.0.0.1:0"
    logs = api("GET", "/logs")["items"]
    assert len(logs) == info["shards"] and {log["state"] for log in logs} == {"ready"}
    settings = {row["key"]: row for row in api("GET", "/settings")["items"]}
    assert settings["api.listen"]["value"] == '"http"'
    assert str(broker.config) in settings["api.listen"]["origin"]
    assert api("GET", "/caller") == {"name": "token", "role": "admin", "namespace": None}
    document = api("GET", "/openapi.json")
    assert document["openapi"].startswith("3.1") and "/clients" in document["paths"]


def test_strangers_are_sent_away_and_roles_hold(start, passwords):
    broker = start(USERS, files={"users": passwords})
    viewer = Api(broker, basic("anna", "secret"), nth=1)
    operator = Api(broker, basic("bruno", "geheim"), nth=1)
    admin = Api(broker, nth=1)
    for stranger in ("Bearer x", "Basic x", basic("anna", "wrong"), basic("nobody", "x"), "x"):
        problem = Api(broker, stranger, nth=1)("GET", "/broker", status=401)
        assert "api.token" in problem["fix"]
    assert viewer("GET", "/caller") == {"name": "anna", "role": "viewer", "namespace": None}
    assert operator("GET", "/caller")["role"] == "operator"
    message = {"topic": "a"}
    problem = viewer("POST", "/publish", message, status=403)
    assert "operator" in problem["detail"] and "viewer" in problem["detail"]
    operator("POST", "/publish", message)
    assert "admin" in operator("DELETE", "/clients/x", status=403)["detail"]
    admin("DELETE", "/clients/x", status=404)
    assert audited(broker, 4) == [
        ("anna", 403), ("bruno", 200), ("bruno", 403), ("token", 404),
    ]


def test_top_shows_rates_and_who_is_slow(managed, client):
    broker, api = managed
    client("sleeper", clean_start=False, properties=kept()).subscribe("jobs/#", 1)
    client("other", clean_start=False, properties=kept()).subscribe("none/#", 1)
    client.close("sleeper")
    client.close("other")
    eventually(lambda: len(api.all("/clients", connected="false")) == 2)
    for number in range(5):
        api("POST", "/publish", {"topic": f"jobs/{number}", "qos": 1})
    assert [row["client_id"] for row in api.all("/clients", queued_min=1)] == ["sleeper"]
    assert api.all("/clients", queued_min=6) == []
    told = ctl(broker, "top", "-C", "2", "--interval", "1s")
    assert told.count("quelea 0.") == 2 and "received/s" in told and "\x1b" not in told
    assert [line.split()[3] for line in told.splitlines() if line.startswith("sleeper")] == ["5"] * 2
    assert "sleeper" in ctl(broker, "clients", "list", "--queued-min", "5")
    ctl(broker, "top", "--interval", "soon", code=2)


def test_a_paused_listener_lets_nobody_in_and_keeps_who_is_there(managed):
    broker, api = managed
    name = "tcp://127.0.0.1:0"
    inside = Peer(broker.port()).accepted(client_id="inside")
    ctl(broker, "listeners", "pause", name)
    with Peer(broker.port()) as peer:
        peer.expect_end()
    inside.ping()
    (listener,) = api("GET", "/listeners")["items"]
    assert listener["paused"] and listener["certificate_days_left"] is None
    turned_away = f'quelea_connections_turned_away_total{{listener="{name}",reason="paused"}}'
    assert broker.metrics()[turned_away] == 1
    ctl(broker, "listeners", "resume", name)
    Peer(broker.port()).accepted(client_id="next").ping()
    inside.ping()
    api("POST", "/listeners/pause", status=404, name="tcp://nowhere")
    api("POST", "/listeners/pause", status=400)


def test_users_are_read_again_and_their_streams_end(start, passwords):
    broker = start(USERS, files={"users": passwords})
    viewer = Api(broker, basic("anna", "secret"), nth=1)
    viewer("GET", "/broker")
    request = urllib.request.Request(viewer.base + "/events")
    request.add_header("Authorization", viewer.authorization)
    stream = urllib.request.urlopen(request, timeout=PATIENCE_SECS)
    assert stream.readline() == b": from here on\n"
    users = broker.directory / "users"
    lines = users.read_text().splitlines(keepends=True)
    users.write_text("".join(line for line in lines if not line.startswith("anna")))
    broker.reload()
    broker.wait_for_log(lambda event: event["message"] == "users of the API reloaded")
    viewer("GET", "/broker", status=401)
    assert stream.read().strip(b"\n:") == b"", "nothing more, and the end"
    # Without one whom the configuration names the file is not taken.
    users.write_text("")
    broker.reload()
    broker.wait_for_log(lambda event: "users of the API not reloaded" in event["message"])
    assert Api(broker, basic("bruno", "geheim"), nth=1)("GET", "/caller")["role"] == "operator"


def test_without_the_section_there_is_no_api(start):
    broker = start()
    status, _ = broker.get("/api/v1/broker")
    assert status == 404
    assert not (broker.data / "api.token").exists()


def test_an_open_address_and_a_token_that_others_can_read_are_refused(tmp_path):
    config = tmp_path / "quelea.toml"

    def refused(listen):
        http = '[http]\nlisten = "127.0.0.1:0"\n'
        config.write_text(CONFIG.replace('"http"', f'"{listen}"') + http)
        command = [QUELEA, "serve", f"--config={config}", f"--data={tmp_path / 'data'}"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_SECS, check=False
        )
        assert done.returncode != 0
        return done.stderr

    assert "allow_remote" in refused("0.0.0.0:0")
    assert "127.0.0.1:9884" in refused("here")
    data = tmp_path / "data"
    data.mkdir(exist_ok=True)
    (data / "api.token").write_text("0123456789abcdef\n")
    (data / "api.token").chmod(0o644)
    assert "chmod 600" in refused("127.0.0.1:0")


BAD = [
    ("GET", "/nothing", {}, 404),
    ("PATCH", "/broker", {}, 405),
    ("GET", "/clients?limit=0", {}, 400),
    ("GET", "/clients?limit=1000000", {}, 400),
    ("GET", "/clients?cursor=x", {}, 400),
    ("GET", "/clients?cursor=99999.0", {}, 400),
    ("GET", "/clients?color=red", {}, 400),
    ("GET", "/clients/%ff", {}, 400),
    ("GET", "/topics/receivers", {}, 400),
    ("GET", "/topics/receivers?topic=a/%23", {}, 400),
    ("GET", "/retained?filter=a%23", {}, 400),
    ("POST", "/publish", {"raw": b"{"}, 400),
    ("POST", "/publish", {"raw": b"[1]"}, 400),
    ("POST", "/publish", {"body": {"topic": "a/#"}}, 400),
    ("POST", "/publish", {"body": {"topic": "$SYS/x"}}, 400),
    ("POST", "/publish", {"body": {"topic": "$share/g/x"}}, 400),
    ("POST", "/publish", {"body": {"topic": "$delayed/9/x"}}, 400),
    ("POST", "/publish", {"body": {"topic": "a\u0001b"}}, 400),
    ("POST", "/publish", {"body": {"topic": "a\u0085b", "retain": True, "payload": "x"}}, 400),
    ("PUT", "/retained/message?topic=a%1Fb", {"body": {"payload": "x"}}, 400),
    ("POST", "/publish", {"body": {"topic": "a", "response_topic": "r\u0001"}}, 400),
    ("POST", "/publish", {"body": {"topic": "a", "response_topic": "r/+"}}, 400),
    ("POST", "/publish", {"body": {"topic": "a", "content_type": "t\u0000"}}, 400),
    ("GET", "/retained?filter=a%01/%23", {}, 400),
    ("GET", "/retained/message?topic=a/%2B", {}, 400),
    ("DELETE", "/retained/message?topic=%23", {}, 400),
    ("POST", "/bans", {"body": {"kind": "client", "who": "a\u0001"}}, 400),
    ("POST", "/publish", {"body": {"topic": "a", "qos": 3}}, 400),
    ("POST", "/publish", {"body": {"topic": "a", "payload": "", "payload_base64": ""}}, 400),
    ("POST", "/publish", {"body": {"topic": "a", "payload_base64": "?"}}, 400),
    ("POST", "/publish", {"raw": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
    ("POST", "/publish", {"body": {"topic": "a", "payload": "x" * (9 << 20)}}, 413),
    ("POST", "/publish/batch", {"body": {"messages": [{"topic": "a"}] * 101}}, 413),
    ("POST", "/publish/batch", {"body": {"messages": [{"topic": "a"}, {"topic": "+"}]}}, 400),
    ("POST", "/clients/nobody/disconnect", {}, 404),
    ("PUT", "/retained/message?topic=a", {"body": {"payload": ""}}, 400),
]


def test_bad_requests_are_told_what_is_wrong(managed):
    _, api = managed
    for method, path, options, status in BAD:
        problem = api(method, path, status=status, **options)
        if status == 400:
            assert problem["place"], problem
    assert "messages[1]" in api(
        "POST", "/publish/batch", {"messages": [{"topic": "a"}, {"topic": "+"}]}, status=400
    )["place"]


def test_noise_is_refused_and_nothing_falls_over(managed):
    broker, api = managed
    chance = random.Random(15)
    names = ["/clients", "/retained", "/publish", "/topics/receivers", "/groups", "/../..", "/%2e"]
    for _ in range(150):
        noise = "".join(chr(chance.choice([*range(33, 127)])) for _ in range(chance.randrange(30)))
        path = f"{chance.choice(names)}?{urllib.parse.quote(noise, safe='=&%/')}"
        request = urllib.request.Request(
            api.base + path, method=chance.choice(["GET", "POST", "PUT", "DELETE"]),
            data=noise.encode(), headers={"Authorization": api.authorization},
        )
        try:
            status = urllib.request.urlopen(request, timeout=PATIENCE_SECS).status
        except urllib.error.HTTPError as error:
            status = error.code
        assert status < 500, (path, status)
    assert api("GET", "/broker")["state"] == "ready"


def test_two_administrators_at_once_and_one_who_does_not_read(managed, client):
    broker, api = managed
    client("one")
    # Somebody asks, and never takes the answer.
    deaf = socket.create_connection(("127.0.0.1", broker.port("http")))
    deaf.sendall(
        f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: {api.authorization}\r\n\r\n"
        .encode()
    )
    results = []

    def purge():
        request = urllib.request.Request(api.base + "/clients/one", method="DELETE")
        request.add_header("Authorization", api.authorization)
        try:
            results.append(urllib.request.urlopen(request, timeout=PATIENCE_SECS).status)
        except urllib.error.HTTPError as error:
            results.append(error.code)

    threads = [threading.Thread(target=purge) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [204, 404, 404, 404, 404, 404]
    deaf.close()


def ctl(broker, *arguments, code=0, environment=None):
    command = [QUELEA, "ctl", "--data", str(broker.data), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECS, check=False,
        env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def test_ctl_finds_the_broker_of_a_data_directory(managed, client):
    broker, _ = managed
    client("dev/7").subscribe("a/+", 1)
    assert "state              ready" in ctl(broker, "info")
    lines = ctl(broker, "clients", "list").splitlines()
    assert lines[0].split()[:3] == ["CLIENT", "USER", "ONLINE"]
    assert lines[1].split()[:3] == ["dev/7", "-", "yes"]
    (row,) = json.loads(ctl(broker, "--json", "clients", "list"))
    assert row["client_id"] == "dev/7"
    assert "a/+" in ctl(broker, "subs", "dev/7")
    assert "dev/7" in ctl(broker, "who", "a/1")
    assert "matched" in ctl(broker, "publish", "a/1", "-m", "x")
    ctl(broker, "retained", "set", "r/1", "-m", "kept")
    assert "kept" in ctl(broker, "retained", "list", "r/#")
    assert json.loads(ctl(broker, "retained", "get", "r/1", "--json"))["payload"] == "kept"
    ctl(broker, "retained", "clear", "r/1")
    assert "not found: retained message on 'r/1'" in ctl(broker, "retained", "get", "r/1", code=5)
    assert "\x1b" not in ctl(broker, "groups", "list")
    assert "tcp://127.0.0.1:0" in ctl(broker, "listeners")
    assert "ready" in ctl(broker, "logs")
    assert "api.listen" in ctl(broker, "settings")
    ctl(broker, "clients", "kick", "dev/7")
    ctl(broker, "clients", "kick", "nobody", code=5)
    ctl(broker, "clients", "purge", "nobody", code=5)
    ctl(broker, "clients", "peel", code=2)
    wrong = {"QUELEA_API_TOKEN": "wrong", "QUELEA_API_URL": Api(broker).base}
    ctl(broker, "info", code=4, environment=wrong)
    broker.terminate()
    broker.wait()
    assert "is the broker running" in ctl(broker, "info", code=1)
    missing = ctl(broker, "info", "--token-file", "/nonexistent", code=1)
    assert "--data" in missing


def raw_request(port, head, body=b""):
    """The open connection."""
    stream = socket.create_connection(("127.0.0.1", port), PATIENCE_SECS)
    stream.sendall(head.replace("\n", "\r\n").encode() + b"\r\n" + body)
    return stream


def test_slow_bodies_hold_up_nobody_else(managed):
    broker, api = managed
    port = broker.port("http")
    head = (
        "POST /api/v1/publish HTTP/1.1\nHost: localhost\nContent-Type: application/json\n"
        f"Content-Length: 1000\nAuthorization: {api.authorization}\nExpect: 100-continue\n"
    )
    slow = [raw_request(port, head) for _ in range(8)]
    for stream in slow:
        # From here on its body is waited for.
        assert stream.recv(100).startswith(b"HTTP/1.1 100")
    assert api("GET", "/clients")["items"] == []
    for stream in slow:
        # None has been given up meanwhile: it is not their time-out that let the call in.
        stream.settimeout(0)
        with pytest.raises(BlockingIOError):
            stream.recv(1)
        stream.close()


def test_wrong_secrets_are_logged_and_counted(start, passwords):
    broker = start(USERS, {"users": passwords})
    anna = base64.b64encode(b"anna:wrong").decode()
    for authorization in (f"Basic {anna}", "Bearer wrong"):
        Api(broker, authorization, nth=1)("GET", "/caller", status=401)
    for username in ("anna", ""):
        line = broker.wait_for_log(
            lambda event, username=username: event["message"] == "API login refused"
            and event["username"] == username
        )
        assert line["address"] == "127.0.0.1"
    assert broker.metrics()["quelea_api_logins_refused_total"] == 2


def test_audit_lines_name_topic_and_subject(managed):
    broker, api = managed
    api("POST", "/publish", {"topic": "a/b", "payload": "x"})
    api("POST", "/publish/batch", {"messages": [{"topic": "c"}, {"topic": "d"}]})
    api("POST", "/bans", {"kind": "user", "who": "eve", "for_secs": 60})
    for subject in ("a/b", "2 messages, the first on c", "user eve"):
        broker.wait_for_log(
            lambda event, subject=subject: event["message"] == "audit"
            and event["subject"] == subject
        )


def test_a_request_for_another_host_is_refused_on_loopback(start):
    broker = start(CONFIG + '[http]\nlisten = "127.0.0.1:0"\nhosts = ["broker.example"]\n')
    port = broker.port("http")

    def status(host, path="/metrics"):
        with raw_request(port, f"GET {path} HTTP/1.1\n{host}Connection: close\n") as stream:
            return int(stream.makefile("rb").readline().split()[1])

    for own in ("localhost", f"localhost:{port}", "127.0.0.1", "[::1]:1", "Broker.Example:80"):
        assert status(f"Host: {own}\n") == 200, own
    for other in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a@b", ""):
        assert status(f"Host: {other}\n") == 421, other
        assert status(f"Host: {other}\n", "/api/v1/caller") == 421, other


def test_check_config_finds_what_a_start_would_miss(tmp_path, passwords):
    (tmp_path / "users").write_text(passwords)
    config = tmp_path / "quelea.toml"

    def check(text, data=tmp_path / "data"):
        config.write_text(text.replace("{dir}", str(tmp_path)) + '\n[http]\nlisten = "off"\n')
        command = [QUELEA, "serve", "--check-config", f"--config={config}", f"--data={data}"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_SECS, check=False
        )
        return done.returncode, done.stderr

    assert check(USERS)[0] == 0
    code, told = check(USERS.replace('"bruno"', '"nobody"'))
    assert code == 2 and "'nobody'" in told
    code, told = check(USERS, tmp_path / "users")
    assert code == 2 and "is not a directory" in told


def test_limits_and_what_is_used_of_them(start):
    config = CONFIG.replace('tcp://127.0.0.1:0"', 'tcp://127.0.0.1:0"\nname = "in"\nconnections_max = 3')
    broker = start(config)
    peers = [Peer(broker.port()).accepted(client_id=f"c{number}") for number in range(2)]
    items = Api(broker)("GET", "/limits")["items"]
    found = {(row["kind"], row["owner"], row["name"]): row for row in items}
    row = found["listener", "in", "connections_max"]
    assert (row["max"], row["used"], row["unit"]) == (3, 2, "connections")
    row = found["broker", "", "limits.connections_max"]
    assert row["used"] == 2 and row["max"] > 3
    assert found["broker", "", "durability.log_bytes_max"]["max"] > 0
    for peer in peers:
        peer.close()


def test_files_of_rules_are_those_in_force(start):
    acl = "topic read news/#\n"
    broker = start(CONFIG + '[access]\nacl_file = "{dir}/acl"\n', {"acl": acl})
    (broker.directory / "acl").write_text("nonsense")
    (file,) = Api(broker)("GET", "/access/files")["items"]
    assert (file["text"], file["source"], file["namespace"]) == (acl, "access_file", "default")
    broker.reload()
    broker.wait_for_log(lambda event: event["message"].startswith("access rules not reloaded"))
    assert Api(broker)("GET", "/access/files")["items"] == [file], "what is wrong was not taken"


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def asks(port, path, source="127.0.0.1", **headers):
    """A connection that has sent a request, and has read nothing."""
    stream = socket.create_connection(("127.0.0.1", port), 60, (source, 0))
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in headers.items())]
    stream.sendall("\r\n".join([*lines, "", ""]).encode())
    return stream


def status_of(stream):
    with stream:
        return int(stream.makefile("rb").readline().split()[1])


def test_nobody_waits_for_callers_with_wrong_passwords(start, passwords):
    # A check takes a second or more: nothing else ends within 40 of them.
    salt, digest = (base64.b64encode(b"x" * size).decode() for size in (16, 64))
    users = passwords + f"\nslow:$7$500000${salt}${digest}\n"
    shared = USERS.replace('listen = "127.0.0.1:0"', 'listen = "http"')
    broker = start(shared + '[http]\nlisten = "127.0.0.1:0"\n', {"users": users})
    port, path = broker.port("http"), "/api/v1/caller"
    wrong = [
        asks(port, path, f"127.0.0.{2 + nth % 3}", Authorization=basic("slow", f"x{nth}"))
        for nth in range(40)
    ]
    for page in ("/metrics", "/healthz", "/readyz", "/metrics"):
        assert status_of(asks(port, page)) == 200
    # From an address of its own, and from one of theirs: behind the check that is under way there.
    right = basic("anna", "secret")
    assert status_of(asks(port, path, "127.0.0.9", Authorization=right)) == 200
    assert status_of(asks(port, path, "127.0.0.3", Authorization=basic("bruno", "geheim"))) == 200
    answered, _, _ = select.select(wrong, [], [], 0)
    assert len(answered) < len(wrong), "some wait still"
    statuses = {status_of(stream) for stream in answered}
    assert 429 in statuses and statuses <= {401, 429}, "too many that wait are answered so"
    for stream in wrong:
        stream.close()


def test_a_large_refused_call_is_in_the_audit_and_not_sent_back(start):
    broker = start(CONFIG + '[http]\nlisten = "127.0.0.1:0"\n')
    api = Api(broker)
    name = "x" * 3_000_000
    problem = api("POST", "/publish", {"topic": "a", name: 1}, status=400)
    assert len(json.dumps(problem)) < 8_192 and "unknown field" in problem["detail"]
    broker.wait_for_log(lambda event: event["message"] == "audit" and event["status"] == 400)
    entry = api("GET", "/audit")["items"][0]
    assert entry["status"] == 400 and len(json.dumps(entry)) < 8_192
