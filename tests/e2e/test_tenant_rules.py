"""Streams, targets and rules that users of a namespace define by the API: each sees its own only."""

import json
import subprocess

import pytest

from broker import QUELEA, Broker, eventually
from receiver import Receiver
from test_api import Api, basic
from test_routing_api import wait_for

USERS = ("alice", "bob", "otto", "vera")
CONFIG = """
[server]
shards = 2
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
namespace = "default"
namespace_from = ["username"]
[api]
listen = "http"
password_file = "{dir}/users"
operators = ["otto"]
viewers = ["vera"]
[routing]
file = "{dir}/rules.toml"
target_networks = ["127.0.0.0/8"]
[[namespaces]]
name = "acme"
api_users = ["alice"]
target_networks = ["127.0.0.1/32"]
[[namespaces]]
name = "zeta"
api_users = ["bob"]
target_networks = ["127.0.0.1/32"]
target_hosts = ["*"]
rules_max = 1
"""
RULES = """
[[streams]]
name = "cars"
filters = ["cars/#"]
[[streams]]
name = "acme.of-file"
namespace = "acme"
filters = ["files/#"]
[[targets]]
name = "hook"
type = "http"
url = "http://127.0.0.1:1/in"
[[rules]]
name = "all"
stream = "cars"
filter = "cars/#"
target = "hook"
"""
KINDS = ("stream", "target", "rule")


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users"
    for name in USERS:
        subprocess.run([QUELEA, "passwd", "-b", str(path), name, "secret"], check=True)
    return path.read_text()


@pytest.fixture
def receivers():
    made = {name: Receiver() for name in ("acme", "zeta")}
    yield made
    for receiver in made.values():
        receiver.stop()


class World:
    """A broker, its operator, and a user of each namespace."""

    def __init__(self, users, receivers):
        self.receivers = receivers
        self.broker = Broker(CONFIG, files={"rules.toml": RULES, "users": users})
        self.connect()

    def connect(self):
        self.admin = Api(self.broker)
        self.acme = self.user("alice")
        self.zeta = self.user("bob")

    def user(self, name):
        return Api(self.broker, basic(name, "secret"))

    def publish(self, payload, namespace):
        message = {"topic": "plants/7", "payload": payload, "qos": 1}
        self.admin("POST", "/publish", message, namespace=namespace)

    def change(self, *changes):
        """Other keys of the configuration, from the next call on."""
        text = self.broker.config.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.broker.config.write_text(text)
        self.admin("POST", "/reload")


@pytest.fixture
def world(users, receivers):
    made = World(users, receivers)
    yield made
    made.broker.stop()


STREAM = {"filters": ["plants/#"], "bytes_max": "16MiB"}


def target(receiver, **more):
    return {"type": "http", "url": receiver.url, **more}


def rule_of(namespace, **more):
    return {"stream": f"{namespace}.plants", "filter": "plants/#", "form": "raw",
            "target": f"{namespace}.hook", "retry_secs": [1], **more}


def put(api, kind, name, keys, status=200):
    return api("PUT", f"/{kind}/definition", keys, status=status, name=name)


def delete(api, kind, name, status=204, **query):
    return api("DELETE", f"/{kind}/definition", status=status, name=name, **query)


def define(api, namespace, receiver):
    put(api, "stream", f"{namespace}.plants", STREAM)
    put(api, "target", f"{namespace}.hook", target(receiver))
    return put(api, "rule", f"{namespace}.all", rule_of(namespace))


@pytest.fixture
def defined(world):
    define(world.acme, "acme", world.receivers["acme"])
    define(world.zeta, "zeta", world.receivers["zeta"])
    return world


def names(api, path="/definitions"):
    return [own["name"] for own in api.all(path, limit=1)]


def waiting(api, name, why):
    """The rule, once it waits for this reason."""
    return eventually(lambda: why in ((own := api("GET", "/rule", name=name))["reason"] or "") and own, why)


def test_each_tenant_defines_and_receives_its_own(defined):
    world = defined
    for namespace in ("acme", "zeta"):
        world.publish(f"for {namespace}", namespace)
    for namespace, api in (("acme", world.acme), ("zeta", world.zeta)):
        eventually(lambda: world.receivers[namespace].payloads() == [f"for {namespace}"])
        wait_for(api, {"state": "idle", "delivered": 1}, f"{namespace}.all")
        caller = api("GET", "/caller")
        assert (caller["role"], caller["namespace"]) == ("tenant", namespace)
        assert sorted(names(api)) == [f"{namespace}.{own}" for own in ("all", "hook", "plants")]
        assert names(api, "/streams") == [f"{namespace}.plants"]
        assert names(api, "/rules") == [f"{namespace}.all"]
        shown = api("GET", "/target/definition", name=f"{namespace}.hook")
        assert (shown["tenant"], shown["source"], shown["definition"]["namespace"]) == (namespace, "api", namespace)
        assert api("GET", "/stream", name=f"{namespace}.plants")["namespace"] == namespace
        for action, state in (("pause", "paused"), ("resume", "idle")):
            api("POST", f"/rule/{action}", name=f"{namespace}.all")
            wait_for(api, {"state": state}, f"{namespace}.all")
        api("POST", "/rule/seek", {"to": "beginning"}, name=f"{namespace}.all")
        eventually(lambda: len(world.receivers[namespace].payloads()) == 2, "it is sent again")
    assert len(names(world.admin)) == 10, "the operator sees all"
    world.broker.restart("kill")
    world.connect()
    assert sorted(names(world.acme)) == ["acme.all", "acme.hook", "acme.plants"]
    world.publish("later", "acme")
    eventually(lambda: "later" in world.receivers["acme"].payloads())
    assert "later" not in world.receivers["zeta"].payloads()


def test_another_namespace_answers_as_none_does(defined):
    """For each call: with a name of another namespace, of the operator, and of nobody."""
    world = defined
    calls = [("GET", f"/{kind}/definition", None) for kind in KINDS]
    calls += [("DELETE", f"/{kind}/definition", None) for kind in KINDS]
    calls += [("GET", "/stream", None), ("GET", "/rule", None), ("POST", "/rule/pause", None),
              ("POST", "/rule/resume", None), ("POST", "/rule/seek", {"to": "end"})]
    others = ["zeta.plants", "zeta.hook", "zeta.all", "cars", "hook", "all", "acme.of-file"]
    for method, path, body in calls:
        unknown = world.acme(method, path, body, status=404, name="nobody")
        for name in others:
            found = world.acme(method, path, body, status=404, name=name)
            assert json.dumps(found) == json.dumps(unknown).replace("nobody", name), (method, path, name)
    for path in ("/streams", "/rules"):
        unknown = world.acme("GET", path, status=404, namespace="nobody")
        for name in ("zeta", "default"):
            found = world.acme("GET", path, status=404, namespace=name)
            assert json.dumps(found) == json.dumps(unknown).replace("nobody", name)
        assert len(names(world.acme, path)) == 1
        world.acme("GET", path, namespace="acme")
    world.acme("DELETE", "/stream/definition", name="zeta.plants", force="true", status=404)
    assert len(names(world.zeta)) == 3 and len(names(world.admin)) == 10


def test_names_and_references_stay_in_the_namespace(defined):
    world = defined
    keys = {"stream": STREAM, "target": target(world.receivers["acme"]), "rule": rule_of("acme")}
    for kind in KINDS:
        for name in ("zeta.plants", "zeta.hook", "zeta.all", "cars", "hook", "all", "acme", "acme.", "acmex.a",
                     "Acme.a", "nobody.a"):
            problem = put(world.acme, kind, name, keys[kind], status=400)
            assert problem["detail"] == "name: must begin with 'acme.'"
    problem = put(world.acme, "stream", "acme.of-file", STREAM, status=409)
    assert problem["detail"] == "the operator of the broker uses the name 'acme.of-file'"
    for kind in ("stream", "target"):
        for namespace in ("zeta", "default", "", None, 7):
            problem = put(world.acme, kind, "acme.x", {**keys[kind], "namespace": namespace}, status=400)
            assert "namespace: must" in problem["detail"]
        put(world.acme, kind, "acme.x", {**keys[kind], "namespace": "acme"})
    put(world.acme, "rule", "acme.x", {**keys["rule"], "namespace": "acme"}, status=400)
    for key, kind, others in (("stream", "stream", ("zeta.plants", "cars", "acme.of-file")),
                              ("dead_letter", "stream", ("zeta.plants", "cars", "acme.of-file")),
                              ("target", "target", ("zeta.hook", "hook"))):
        for name in (*others, "nobody"):
            problem = put(world.acme, "rule", "acme.x", rule_of("acme", **{key: name}), status=400)
            assert problem["detail"] == f"rule 'acme.x' of the API: {key}: no {kind} is named '{name}'"
    for keys in ({"networks": ["10.0.0.0/8"]}, {"tenant": {"namespace": "zeta", "number": 2}},
                 {"headers": {"x": {"file": "/etc/passwd"}}}):
        put(world.acme, "target", "acme.y", target(world.receivers["acme"], **keys), status=400)


def test_operators_leave_what_tenants_define_alone(defined):
    world = defined
    for kind, name in (("stream", "plants"), ("target", "hook"), ("rule", "all")):
        keys = {"stream": STREAM, "target": target(world.receivers["acme"]), "rule": rule_of("acme")}[kind]
        for own in (f"acme.{name}", "acme.new"):
            problem = put(world.admin, kind, own, keys, status=409)
            assert "is of namespace 'acme', whose API users define it" in problem["detail"]
    # A tenant could change what an operator's rule reads, and where it sends.
    own = {"stream": "cars", "filter": "#", "target": "hook"}
    for key, name in (("stream", "acme.plants"), ("target", "acme.hook"), ("dead_letter", "acme.plants")):
        problem = put(world.admin, "rule", "own", {**own, key: name}, status=400)
        assert "only their rules may use it" in problem["detail"]
    put(world.admin, "target", "own", target(world.receivers["acme"], namespace="acme"), status=400)
    put(world.admin, "rule", "own", own)
    # Clearing up is an operator's.
    delete(world.admin, "stream", "acme.plants", status=409)
    delete(world.admin, "stream", "acme.plants", force="true")
    assert names(world.acme) == ["acme.hook"]
    assert len(names(world.zeta)) == 3


def test_tenants_delete_their_own_by_force(defined):
    world = defined
    world.publish("kept", "acme")
    eventually(lambda: world.receivers["acme"].payloads() == ["kept"])
    problem = delete(world.acme, "stream", "acme.plants", status=409)
    assert "rules read it: acme.all" in problem["detail"]
    problem = delete(world.acme, "target", "acme.hook", status=409)
    assert "acme.all" in problem["detail"] and "zeta" not in json.dumps(problem)
    delete(world.acme, "stream", "acme.plants", force="true")
    delete(world.acme, "target", "acme.hook")
    assert names(world.acme) == []
    world.publish("still", "zeta")
    eventually(lambda: world.receivers["zeta"].payloads() == ["still"])


def test_quotas(defined):
    world = defined
    problem = put(world.zeta, "rule", "zeta.more", rule_of("zeta"), status=409)
    assert problem["detail"] == "rules_max: the namespace may have 1, and has 1"
    put(world.zeta, "rule", "zeta.all", rule_of("zeta", lanes=2))
    for number in range(9):
        put(world.zeta, "target", f"zeta.{number}", target(world.receivers["zeta"]))
    assert "targets_max" in put(world.zeta, "target", "zeta.more", target(world.receivers["zeta"]), 409)["detail"]
    put(world.acme, "target", "acme.more", target(world.receivers["acme"]))
    problem = put(world.acme, "stream", "acme.more", {"filters": ["a"]}, status=400)
    assert "bytes_max: missing: a stream of a namespace must have a limit" in problem["detail"]
    put(world.acme, "stream", "acme.more", {**STREAM, "bytes_max": "1008MiB"})
    assert "stream_bytes_max" in put(world.acme, "stream", "acme.one", {**STREAM, "bytes_max": "1MiB"}, 409)["detail"]
    assert "stream_bytes_max" in put(world.acme, "stream", "acme.more", {**STREAM, "bytes_max": "1009MiB"}, 409)["detail"]
    filters = [f"{number}/{'x' * 2000}" for number in range(80)]
    problem = put(world.acme, "stream", "acme.more", {**STREAM, "filters": filters}, status=409)
    assert "all definitions of the namespace must have at most 122880 bytes" in problem["detail"]
    # What a lower quota makes too much stays, and does not grow.
    world.change(('api_users = ["alice"]', 'api_users = ["alice"]\nstreams_max = 1\nstream_bytes_max = "1MiB"'))
    put(world.acme, "stream", "acme.plants", {**STREAM, "qos_min": 1})
    put(world.acme, "stream", "acme.one", {**STREAM, "bytes_max": "1MiB"}, status=409)
    put(world.acme, "stream", "acme.plants", {**STREAM, "bytes_max": "17MiB"}, status=409)
    delete(world.acme, "stream", "acme.more")
    assert len(names(world.acme, "/streams")) == 1


@pytest.mark.parametrize("url", [
    "http://169.254.169.254/latest/meta-data", "http://[::ffff:169.254.169.254]/", "http://127.0.0.2:1/",
    "http://[::1]:1/", "http://10.0.0.1/", "https://0.0.0.0/"])
def test_a_target_of_an_own_network_is_refused(world, url):
    for api, namespace in ((world.acme, "acme"), (world.zeta, "zeta")):
        problem = put(api, "target", f"{namespace}.x", {"type": "http", "url": url}, status=400)
        assert f"the address is not public, and not in `target_networks` of namespace '{namespace}'" in problem["detail"]
    server = url.split("/")[2] if url.count(":") > 1 else url.split("/")[2] + ":1"
    if "]" in server and not server.endswith("1"):
        server += ":9092"
    put(world.zeta, "target", "zeta.k", {"type": "kafka", "servers": ["kafka.example:9092", server]}, status=400)


def test_hosts_are_those_of_the_list(world):
    for host in ("hooks.example", "localhost", "9.9.9.9"):
        problem = put(world.acme, "target", "acme.x", {"type": "http", "url": f"https://{host}/"}, status=400)
        assert f"{host}: not among `target_hosts` of namespace 'acme'" in problem["detail"]
        put(world.zeta, "target", "zeta.x", {"type": "http", "url": f"https://{host}/"})
    login = {"mechanism": "OAUTHBEARER", "token_url": "https://id.example/token", "client_id": "a", "client_secret": "b"}
    kafka = {"type": "kafka", "servers": ["127.0.0.1:9092"], "tls": True, "sasl": login}
    problem = put(world.acme, "target", "acme.x", kafka, status=400)
    assert "sasl.token_url: id.example: not among" in problem["detail"]
    world.change(('api_users = ["alice"]', 'api_users = ["alice"]\ntarget_hosts = ["*.example"]'))
    put(world.acme, "target", "acme.x", kafka)
    put(world.acme, "target", "acme.x", {"type": "http", "url": "https://localhost/"}, status=400)


def test_requests_of_a_target_are_limited(world):
    problem = put(world.acme, "target", "acme.x", target(world.receivers["acme"], requests_max=33), status=400)
    assert "requests_max: must be at most 32 for a target of a namespace, got 33" in problem["detail"]
    put(world.acme, "target", "acme.x", target(world.receivers["acme"], requests_max=32))


def test_a_name_that_leads_to_an_own_network_gets_no_connection(world):
    """`localhost` is permitted as a name, and its address is not."""
    world.change(('target_networks = ["127.0.0.1/32"]\ntarget_hosts = ["*"]', 'target_hosts = ["*"]'))
    put(world.zeta, "stream", "zeta.plants", STREAM)
    url = world.receivers["zeta"].url.replace("127.0.0.1", "localhost")
    put(world.zeta, "target", "zeta.hook", {"type": "http", "url": url})
    put(world.zeta, "rule", "zeta.all", rule_of("zeta"))
    world.publish("secret", "zeta")
    found = waiting(world.zeta, "zeta.all", "localhost: the address is not public")
    assert "127.0.0.1" not in found["reason"]
    assert world.receivers["zeta"].payloads() == []


def test_a_target_that_is_not_permitted_any_more_sends_nothing_and_loses_nothing(defined):
    world = defined
    world.publish("1", "acme")
    eventually(lambda: world.receivers["acme"].payloads() == ["1"])
    permitted = 'api_users = ["alice"]\ntarget_networks = ["127.0.0.1/32"]'
    world.change((permitted, 'api_users = ["alice"]'))
    world.publish("2", "acme")
    found = waiting(world.acme, "acme.all", "not in `target_networks` of namespace 'acme'")
    assert found["lag_messages"] == 1
    assert world.receivers["acme"].payloads() == ["1"]
    world.broker.restart("terminate")
    world.connect()
    waiting(world.acme, "acme.all", "not in `target_networks`")
    assert world.receivers["acme"].payloads() == ["1"]
    world.change(('api_users = ["alice"]', permitted))
    eventually(lambda: world.receivers["acme"].payloads() == ["1", "2"])


def test_a_file_of_rules_that_is_wrong_does_not_keep_a_permission(defined):
    world = defined
    world.change(('api_users = ["alice"]\ntarget_networks = ["127.0.0.1/32"]', 'api_users = ["alice"]'))
    (world.broker.directory / "rules.toml").write_text("[[streams]]\n")
    world.change(('api_users = ["bob"]\ntarget_networks = ["127.0.0.1/32"]', 'api_users = ["bob"]'))
    world.publish("2", "zeta")
    waiting(world.zeta, "zeta.all", "not in `target_networks`")
    assert not world.receivers["zeta"].payloads()


def test_all_other_routes_are_refused(world):
    document = world.admin("GET", "/openapi.json")
    checked = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "API user of a namespace" in operation["description"]:
                continue
            problem = world.acme(method.upper(), path.replace("{", "").replace("}", ""), status=403,
                                 body={} if "requestBody" in operation else None)
            assert "may only see and define its streams, targets and rules" in problem["detail"], path
            checked += 1
    assert checked > 50
    problem = world.acme("POST", "/sessions", status=403)
    assert "the dashboard and its log-in are for operators" in problem["fix"]
    # vera belongs to no namespace.
    assert world.user("vera")("GET", "/caller")["namespace"] is None


def test_a_suspended_namespace_refuses_its_users(defined):
    world = defined
    world.admin("POST", "/namespace/suspend", name="acme")
    for method, path in (("GET", "/definitions"), ("GET", "/rules"), ("GET", "/caller")):
        problem = world.acme(method, path, status=403)
        assert problem["detail"] == "the namespace 'acme' is suspended or deleted"
    put(world.acme, "stream", "acme.more", STREAM, status=403)
    assert len(names(world.zeta)) == 3
    world.admin("POST", "/namespace/resume", name="acme")
    assert len(names(world.acme)) == 3


def test_a_user_who_is_removed_has_no_access_from_the_next_call_on(defined):
    world = defined
    assert len(names(world.acme)) == 3
    world.change(('api_users = ["alice"]\n', ""))
    for path in ("/definitions", "/caller", "/clients", "/broker"):
        problem = world.acme("GET", path, status=403)
        assert problem["detail"] == "the user 'alice' has no rights"
    # What was defined goes on.
    world.publish("1", "acme")
    eventually(lambda: world.receivers["acme"].payloads() == ["1"])
    # Another namespace is another world.
    world.change(('api_users = ["bob"]', 'api_users = ["bob", "alice"]'))
    assert world.acme("GET", "/caller")["namespace"] == "zeta"
    assert sorted(names(world.acme)) == ["zeta.all", "zeta.hook", "zeta.plants"]
    put(world.acme, "stream", "acme.more", STREAM, status=400)


def test_a_user_without_a_password_is_refused_as_a_whole(world):
    text = world.broker.config.read_text()
    world.broker.config.write_text(text.replace('["alice"]', '["alice", "eve"]'))
    outcome = world.admin("POST", "/reload")
    assert "user 'eve' is not in password_file" in json.dumps(outcome)
    world.acme("GET", "/definitions")


def test_a_namespace_that_is_made_again_has_nothing_of_the_one_before(defined):
    world = defined
    world.publish("old", "acme")
    eventually(lambda: world.receivers["acme"].payloads() == ["old"])
    whole = world.broker.config.read_text()
    world.change(('name = "acme"', 'name = "acme"\nstate = "deleted"\ndiscard_pending = true'))
    world.broker.wait_for_log(lambda event: event["message"] == "namespace deleted")
    world.acme("GET", "/definitions", status=403)
    eventually(lambda: [name for name in names(world.admin) if name.startswith("acme.")] == ["acme.of-file"])
    stored = (world.broker.data / "stream-definitions").read_text()
    assert "acme" not in stored and "zeta.plants" in stored
    world.broker.config.write_text(whole)
    world.admin("POST", "/reload")
    assert names(world.acme) == []
    put(world.acme, "stream", "acme.plants", STREAM)
    put(world.acme, "target", "acme.hook", target(world.receivers["acme"]))
    put(world.acme, "rule", "acme.all", rule_of("acme", start="beginning"))
    world.publish("new", "acme")
    eventually(lambda: world.receivers["acme"].payloads() == ["old", "new"])
    eventually(lambda: world.acme("GET", "/stream", name="acme.plants")["stored_messages"] == 1)


def test_a_wrong_file_of_rules_leaves_nothing_to_a_namespace_that_is_made_again(defined):
    world = defined
    broker, whole = world.broker, world.broker.config.read_text()
    world.receivers["acme"].answers = lambda body: 503
    world.publish("old", "acme")
    wait_for(world.acme, {"lag_messages": 1}, "acme.all")
    (broker.directory / "rules.toml").write_text("[[streams]]\n")
    world.change(('name = "acme"', 'name = "acme"\nstate = "deleted"\ndiscard_pending = true'))
    broker.wait_for_log(lambda event: event["message"] == "namespace deleted")
    world.receivers["acme"].answers = lambda body: 200
    broker.config.write_text(whole)
    world.admin("POST", "/reload")
    assert names(world.acme) == []
    left = [own["name"] for own in world.admin.all("/definitions") if own["tenant"] == "acme"]
    assert left == []
    define(world.acme, "acme", world.receivers["acme"])
    world.publish("new", "acme")
    eventually(lambda: world.receivers["acme"].payloads() == ["new"])


def test_definitions_outlive_a_start_without_logs(users, receivers, monkeypatch):
    """The numbers of namespaces are stored also at the level `memory`."""
    monkeypatch.setitem(globals(), "CONFIG", CONFIG + '[durability]\nlevel = "memory"\n')
    world = World(users, receivers)
    try:
        define(world.acme, "acme", receivers["acme"])
        text = world.broker.config.read_text()
        first = text.index('[[namespaces]]\nname = "acme"')
        second = text.index('[[namespaces]]\nname = "zeta"')
        end = text.index("[durability]")
        # Another order in the file is no other namespace.
        world.broker.config.write_text(text[:first] + text[second:end] + text[first:second] + text[end:])
        world.broker.restart("kill")
        world.connect()
        assert len(names(world.acme)) == 3
        world.publish("1", "acme")
        eventually(lambda: receivers["acme"].payloads() == ["1"])
    finally:
        world.broker.stop()


def test_a_user_whose_password_is_deleted_stops_no_reload(defined):
    world = defined
    users = world.broker.directory / "users"
    lines = users.read_text().splitlines(keepends=True)
    users.write_text("".join(line for line in lines if not line.startswith("alice:")))
    outcome = world.admin("POST", "/reload")
    assert "alice" not in json.dumps(outcome)
    world.acme("GET", "/definitions", status=401)
    assert len(names(world.zeta)) == 3


def test_a_namespace_that_is_not_configured_any_more_keeps_what_it_has(defined):
    """As its sessions: they are suspended until it is there again."""
    world = defined
    whole = world.broker.config.read_text()
    start, end = whole.index('[[namespaces]]\nname = "zeta"'), whole.index("[http]")
    world.broker.config.write_text(whole[:start] + whole[end:])
    world.admin("POST", "/reload")
    world.zeta("GET", "/definitions", status=403)
    put(world.acme, "target", "acme.more", target(world.receivers["acme"]))
    world.broker.restart("kill")
    world.connect()
    put(world.acme, "target", "acme.again", target(world.receivers["acme"]))
    assert world.admin("GET", "/rule", name="zeta.all")["state"] == "suspended"
    world.broker.config.write_text(whole)
    world.admin("POST", "/reload")
    assert len(names(world.zeta)) == 3
    world.publish("1", "zeta")
    eventually(lambda: world.receivers["zeta"].payloads() == ["1"])


def test_the_same_target_of_two_tenants_is_two(defined):
    """One that hangs takes nothing from the other."""
    world = defined
    shared = world.receivers["acme"]
    shared.answers = lambda body: 503 if body.startswith(b"acme") else 200
    put(world.zeta, "target", "zeta.hook", target(shared))
    world.publish("acme 1", "acme")
    wait_for(world.acme, {"lag_messages": 1}, "acme.all")
    world.publish("zeta 1", "zeta")
    eventually(lambda: shared.payloads() == ["zeta 1"])


def test_ctl_works_for_a_tenant(world, tmp_path):
    file, password = tmp_path / "stream.toml", tmp_path / "password"
    file.write_text('[[streams]]\nname = "acme.plants"\nfilters = ["plants/#"]\nbytes_max = "16MiB"\n')
    password.write_text("secret\n")
    url = f"http://127.0.0.1:{world.broker.port('http')}"

    def ctl(*arguments, code=0):
        command = [QUELEA, "ctl", "--url", url, "--user", "alice", "--user-password-file", str(password), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == code, ended
        return ended.stdout + ended.stderr

    ctl("streams", "put", str(file))
    assert "acme.plants" in ctl("streams") and "cars" not in ctl("streams")
    shown = ctl("streams", "definition", "acme.plants")
    assert shown.startswith("# Defined by API users of namespace acme.\n") and 'namespace = "acme"' in shown
    assert "may only see and define" in ctl("ns", "list", code=4)
    ctl("rules", "pause", "all", code=5)
    ctl("streams", "delete", "acme.plants")
