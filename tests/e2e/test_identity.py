"""Who a client is: chains of providers, tokens, services, certificates, and what they lead to."""

import json
import subprocess
import threading
import time

import paho.mqtt.client as paho
import pytest

from broker import QUELEA, eventually
from test_access import may_publish, may_subscribe
from tokens import SECRET, RsaKey, Service, as_json, b64, claims, hs256
from wire import Peer, connect, packet, prefixed, varint

BUSY, UNAVAILABLE, NOT_AUTHORIZED = 0x89, 0x88, 0x87

LISTENER = """
[[listeners]]
url = "tcp://127.0.0.1:0"
"""

BY_SECRET = """
[[authentication]]
name = "tokens"
kind = "jwt"
secret_file = "{dir}/secret"
attributes = ["site=${claims.site}"]
""" + LISTENER


@pytest.fixture
def service():
    made = []

    def make(answer):
        made.append(Service(answer))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def reason(broker, **options):
    with Peer(broker.port()) as peer:
        return peer.connect(**options)[1]


def test_a_token_of_a_paho_client_decides_its_name_and_its_topics(start):
    acl = "user anna\ntopic readwrite home/#\npattern readwrite sites/%{attributes.site}/#\n"
    broker = start(BY_SECRET + '[access]\nacl_file = "{dir}/acl"\n', {"secret": SECRET, "acl": acl})
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "c1", protocol=paho.MQTTv5)
    client.username_pw_set("whatever", hs256(claims(site=["berlin", "bonn"])))
    got, ready = [], threading.Event()
    client.on_connect = lambda c, _, __, code, ___: c.subscribe("home/#", 1)
    client.on_subscribe = lambda c, *_: (c.publish("home/a", b"1", 1), c.publish("other", b"2", 0))
    client.on_message = lambda _, __, message: (got.append(message.topic), ready.set())
    client.connect("127.0.0.1", broker.port())
    client.loop_start()
    assert ready.wait(20) and got == ["home/a"]
    client.disconnect()
    client.loop_stop()
    token = hs256(claims(site=["berlin", "bonn"]))
    with Peer(broker.port()).accepted(user="x", password=token) as peer:
        assert may_publish(peer, "sites/bonn/t") and may_subscribe(peer, "sites/berlin/#")
        assert not may_publish(peer, "sites/paris/t")
    broker.wait_for_log(lambda event: event.get("username") == "anna")


def test_tokens_that_are_not_good_are_refused(start, tmp_path):
    key = RsaKey(tmp_path, "k")
    config = BY_SECRET.replace("secret_file", 'audience = ["mqtt"]\nkey_file').replace(
        "{dir}/secret", "{dir}/key"
    )
    broker = start(config, {"key": key.public})
    good = claims(aud="mqtt")
    assert reason(broker, user="a", password=key.sign(good)) == 0
    none = f"{b64({'alg': 'none'})}.{b64(good)}."
    for what, token in [
        ("expired", key.sign({**good, "exp": int(time.time()) - 60})),
        ("never expires", key.sign({"sub": "anna", "aud": "mqtt"})),
        ("of another audience", key.sign(claims(aud="web"))),
        ("unsigned", none),
        ("of another algorithm", key.sign(good, alg="RS512")),
        ("with the public key for a secret", hs256(good, key.public)),
        ("of another key", RsaKey(tmp_path, "other").sign(good)),
        ("no token", "password"),
        ("nothing", None),
    ]:
        assert reason(broker, user="a", password=token) == NOT_AUTHORIZED, what


def test_a_connection_ends_with_its_token_unless_a_new_one_took_over(start):
    broker = start(BY_SECRET.replace("kind", "leeway_secs = 0\nkind"), {"secret": SECRET})
    ends = int(time.time()) + 3
    with Peer(broker.port()).accepted(user="a", password=hs256(claims(exp=ends))) as peer:
        peer.expect_disconnect(NOT_AUTHORIZED)
        assert time.time() >= ends - 0.01
    metrics = broker.metrics()
    expired = [v for name, v in metrics.items() if "credentials_expired" in name]
    assert sum(expired) == 1


def test_a_chain_asks_one_after_the_other(start, passwords):
    config = (
        BY_SECRET
        + 'authentication = ["tokens", "file"]\n[[listeners]]\nurl = "tcp://127.0.0.1:0"\n'
        + 'authentication = ["file"]\n[auth]\npassword_file = "{dir}/passwords"\n'
    )
    broker = start(config, {"secret": SECRET, "passwords": passwords})
    token = hs256(claims())
    both, only_file = broker.port(nth=0), broker.port(nth=1)
    for port, user, password, admitted in [
        (both, "x", token, True), (both, "anna", "secret", True), (both, "anna", "wrong", False),
        (both, "x", hs256(claims(), "y" * 40), False), (only_file, "x", token, False),
        (only_file, "anna", "secret", True),
    ]:
        with Peer(port) as peer:
            assert (peer.connect(user=user, password=password)[1] == 0) == admitted, (user, password)


def test_keys_rotate_and_a_fetch_that_fails_changes_nothing(start, service, tmp_path):
    old, new, never = (RsaKey(tmp_path, kid) for kid in ("old", "new", "never"))
    keys = {"keys": [old.jwk()]}
    state = {"reply": as_json(keys)}
    issuer = service(lambda *_: state["reply"])
    broker = start(
        f'[[authentication]]\nname = "tokens"\nkind = "jwt"\njwks_url = "{issuer.url}/keys"\n'
        + LISTENER
    )
    assert reason(broker, user="a", password=old.sign(claims())) == 0
    fetched = len(issuer.asked)
    state["reply"] = as_json({"keys": [old.jwk(), new.jwk()]})
    # A storm of tokens with keys that nobody has fetches nothing more than every ten seconds.
    for _ in range(50):
        assert reason(broker, user="a", password=never.sign(claims())) == NOT_AUTHORIZED
    assert len(issuer.asked) <= fetched + 1
    eventually(lambda: reason(broker, user="a", password=new.sign(claims())) == 0, "the new key")
    for reply in [(500, {}, b""), as_json({"keys": []}), as_json([]), (200, {}, b"x" * 2_000_000)]:
        state["reply"] = reply
        seen = len(broker.log)
        broker.reload()
        broker.wait_for_log(lambda event: "cannot fetch" in event["message"], seen)
        assert reason(broker, user="a", password=new.sign(claims())) == 0


def test_a_service_is_asked_as_emqx_asks_it(start, service):
    answers = {
        "anna": as_json({"result": "allow", "is_superuser": False, "client_attrs": {"site": "x"}}),
        "root": as_json({"result": "allow", "is_superuser": True}),
        "bare": (204, {}, b""),
        "deny": as_json({"result": "deny"}),
        "ignore": as_json({"result": "ignore"}),
        "broken": (200, {"Content-Type": "application/json"}, b"{"),
        "gone": as_json({}, 404),
        "error": as_json({}, 500),
        "acl": as_json({"result": "allow", "acl": [{"permission": "deny"}]}),
    }
    asked = service(lambda _, body: answers[json.loads(body)["username"]])
    acl = "pattern readwrite sites/%{attributes.site}/#\n"
    config = f"""
[[authentication]]
name = "service"
kind = "http"
url = "{asked.url}/mqtt/auth"
headers = ["X-Broker: quelea"]
body = ["clientid=${{clientid}}", "username=${{username}}", "password=${{password}}",
        "peerhost=${{peerhost}}"]
{LISTENER}
[access]
acl_file = "{{dir}}/acl"
"""
    broker = start(config, {"acl": acl})
    for user, expected in [
        ("anna", 0), ("root", 0), ("bare", 0), ("deny", NOT_AUTHORIZED),
        ("ignore", NOT_AUTHORIZED), ("broken", UNAVAILABLE), ("gone", NOT_AUTHORIZED),
        ("error", UNAVAILABLE), ("acl", NOT_AUTHORIZED),
    ]:
        assert reason(broker, client_id="c1", user=user, password='p"w') == expected, user
    method, path, body, headers = asked.asked[0]
    assert (method, path, headers["x-broker"]) == ("POST", "/mqtt/auth", "quelea")
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {
        "clientid": "c1", "username": "anna", "password": 'p"w', "peerhost": "127.0.0.1",
    }
    with Peer(broker.port()).accepted(user="anna", password="x") as peer:
        assert may_publish(peer, "sites/x/t") and not may_publish(peer, "other")
    with Peer(broker.port()).accepted(user="root", password="x") as peer:
        assert may_publish(peer, "other") and not may_publish(peer, "$SYS/x")


def test_a_token_and_an_answer_bring_their_own_access_rules(start, service):
    own = [
        {"permission": "deny", "action": "publish", "topic": "${clientid}/closed"},
        {"permission": "allow", "action": "all", "topic": "${clientid}/#", "qos": [0, 1]},
    ]
    asked = service(lambda *_: as_json({"result": "allow", "acl": {"sub": ["news/#"]}}))
    config = BY_SECRET + (
        f'[[authentication]]\nname = "s"\nkind = "http"\nurl = "{asked.url}"\n'
        '[access]\npolicy_file = "{dir}/policy"\n'
    )
    policy = '[[rules]]\neffect = "allow"\ntopics = ["all/#"]\n'
    broker = start(config, {"secret": SECRET, "policy": policy})
    token = hs256(claims(acl=own))
    with Peer(broker.port()).accepted(client_id="c1", user="x", password=token) as peer:
        assert may_publish(peer, "c1/open") and not may_publish(peer, "c1/closed")
        assert may_publish(peer, "all/x") and not may_publish(peer, "c2/open")
        assert may_subscribe(peer, "c1/#") and not may_subscribe(peer, "news/a")
    with Peer(broker.port()).accepted(client_id="c2", user="y", password="p") as peer:
        assert may_subscribe(peer, "news/a") and not may_publish(peer, "news/a")
    # A newer token brings its own; what cannot be understood is nobody's.
    odd = hs256(claims(acl=[{"permission": "allow", "topic": "#", "clientid_re": "^c"}]))
    assert reason(broker, client_id="c3", user="x", password=odd) == NOT_AUTHORIZED


def test_a_name_in_a_token_is_no_longer_than_one_in_a_connect(start):
    broker = start(BY_SECRET + "[limits]\nusername_bytes_max = 20\n", {"secret": SECRET})

    def ask(name):
        return reason(broker, client_id="c1", password=hs256(claims(sub=name)))

    assert ask("a" * 20) == 0
    assert ask("a" * 21) == 0x86
    broker.wait_for_log(lambda event: "longer than username_bytes_max" in event.get("detail", ""))


def test_access_rules_that_are_not_understood_refuse_the_log_in(start, service):
    odd = [["up/#"], {"publish": ["up/#"]}, "[]", True, None,
           {"permission": "allow", "action": "all", "topic": "up/#"},
           [{"action": "all", "topic": "up/#"}]]
    answers = iter(odd)
    asked = service(lambda *_: as_json({"result": "allow", "acl": next(answers)}))
    config = BY_SECRET.replace(LISTENER, "") + (
        f'[[authentication]]\nname = "s"\nkind = "http"\nurl = "{asked.url}"\n' + LISTENER
    )
    broker = start(config, {"secret": SECRET})
    for acl in odd:
        token = hs256(claims(acl=acl))
        assert reason(broker, client_id="c1", user="x", password=token) == NOT_AUTHORIZED, acl
        assert reason(broker, client_id="c1", user="x", password="p") == NOT_AUTHORIZED, acl
    line = broker.wait_for_log(lambda event: event["message"] == "login refused")
    assert "access rules (acl)" in line["detail"], line
    # The object form denies what it does not mention, also where nothing else forbids anything.
    token = hs256(claims(acl={"pub": ["up/${clientid}"]}))
    with Peer(broker.port()).accepted(client_id="c1", user="x", password=token) as peer:
        assert may_publish(peer, "up/c1") and not may_publish(peer, "up/c2")
        assert not may_subscribe(peer, "#") and not may_subscribe(peer, "$SYS/#")


def test_answers_are_remembered_as_long_as_they_say(start, service):
    asked = service(
        lambda _, body: as_json({"result": "allow"}, **{"Cache-Control": "max-age=600"})
    )
    broker = start(
        f'[[authentication]]\nname = "s"\nkind = "http"\nurl = "{asked.url}"\n' + LISTENER
    )
    for _ in range(20):
        assert reason(broker, client_id="c", user="a", password="p") == 0
    assert len(asked.asked) == 1
    assert reason(broker, client_id="c", user="a", password="q") == 0
    assert len(asked.asked) == 2, "another password is another question"
    broker.reload()
    assert reason(broker, client_id="c", user="a", password="p") == 0
    assert len(asked.asked) == 3, "a reload forgets"


def test_a_service_that_hangs_holds_up_nobody_else(start, service, passwords):
    release = threading.Event()

    def hang(*_):
        release.wait(60)
        return as_json({"result": "allow"})

    hanging = service(hang)
    other = service(lambda *_: as_json({"result": "allow"}))
    config = f"""
[[authentication]]
name = "hanging"
kind = "http"
url = "{hanging.url}"
requests_max = 8
timeout_secs = 1
[[authentication]]
name = "other"
kind = "http"
url = "{other.url}"
[[authentication]]
name = "tokens"
kind = "jwt"
secret_file = "{{dir}}/secret"
[auth]
password_file = "{{dir}}/passwords"
"""
    for chain in ('["hanging"]', '["other"]', '["tokens"]', '["file"]'):
        config += LISTENER + f"authentication = {chain}\n"
    broker = start(config, {"secret": SECRET, "passwords": passwords})
    waiting = [Peer(broker.port(nth=0)) for _ in range(6)]
    for number, peer in enumerate(waiting):
        peer.send(connect(f"w{number}", user="a", password=str(number)))
    eventually(lambda: len(hanging.asked) == 2, "a quarter of the requests, for one address")
    for nth, user, password in [(1, "a", "b"), (2, "a", hs256(claims())), (3, "anna", "secret")]:
        with Peer(broker.port(nth=nth)) as peer:
            assert peer.connect(user=user, password=password)[1] == 0
    assert len(hanging.asked) == 2, "no more than one address may have"
    # Each waits for its own time-out: those of one address do not open the breaker.
    for peer in waiting:
        body = peer.expect(0x20)
        assert body[1] == UNAVAILABLE
        peer.close()
    with Peer(broker.port(nth=0)) as peer:
        assert peer.connect(user="late", password="x")[1] == UNAVAILABLE
    release.set()


def test_a_service_that_is_down_leaves_clients_to_the_next(start, passwords):
    config = f"""
[[authentication]]
name = "gone"
kind = "http"
url = "http://127.0.0.1:1/"
[auth]
password_file = "{{dir}}/passwords"
{LISTENER}
authentication = ["gone", "file"]
"""
    broker = start(config, {"passwords": passwords})
    assert reason(broker, user="anna", password="secret") == 0
    assert reason(broker, user="anna", password="wrong") == NOT_AUTHORIZED
    for number in range(20):
        assert reason(broker, user="anna", password="secret") == 0, number


def test_names_and_attributes_come_from_a_certificate(start, certs):
    acl = "pattern readwrite units/%u/%{attributes.org}/#\n"
    config = f"""
[[authentication]]
name = "fleet"
kind = "certificate"
username = "unit-${{cert_common_name}}"
attributes = ["org=${{cert_subject}}"]
[[listeners]]
url = "tls://127.0.0.1:0"
[listeners.tls]
certificate = "{certs}/server.crt"
key = "{certs}/server.key"
client_ca = "{certs}/ca.crt"
client_auth = "optional"
[access]
acl_file = "{{dir}}/acl"
"""
    broker = start(config, {"acl": acl})
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "c1", protocol=paho.MQTTv5)
    client.tls_set(f"{certs}/ca.crt", f"{certs}/client.crt", f"{certs}/client.key")
    codes, answered = [], threading.Event()

    def subscribed(_, __, ___, reasons, ____):
        codes.extend(reason.value for reason in reasons)
        answered.set()

    client.on_connect = lambda c, *_: c.subscribe(
        [("units/unit-anna/CN=anna,O=quelea/x", 1), ("units/unit-bruno/#", 1)]
    )
    client.on_subscribe = subscribed
    client.connect("localhost", broker.port("tls"))
    client.loop_start()
    assert answered.wait(20) and codes == [1, 0x87]
    client.disconnect()
    client.loop_stop()
    bare = paho.Client(paho.CallbackAPIVersion.VERSION2, "c2", protocol=paho.MQTTv5)
    bare.tls_set(f"{certs}/ca.crt")
    refused, told = [], threading.Event()
    bare.on_connect = lambda _, __, ___, code, ____: (refused.append(code.value), told.set())
    bare.connect("localhost", broker.port("tls"))
    bare.loop_start()
    assert told.wait(20) and refused[0] == NOT_AUTHORIZED
    bare.loop_stop()


BANNED, ADMINISTRATIVE = 0x8A, 0x98


def test_bans_keep_out_and_throw_out(start, passwords):
    config = LISTENER + '[auth]\npassword_file = "{dir}/passwords"\nban_file = "{dir}/bans"\n'
    files = {"passwords": passwords, "bans": "user bruno\nclient old until 2020-01-01T00:00:00Z\n"}
    broker = start(config, files)
    assert reason(broker, user="bruno", password="geheim") == BANNED
    assert reason(broker, client_id="old", user="anna", password="secret") == 0
    by_id = Peer(broker.port()).accepted(client_id="c1", user="anna", password="secret")
    other = Peer(broker.port()).accepted(client_id="c2", user="anna", password="secret")
    bans = broker.directory / "bans"
    bans.write_text("client c1\n")
    broker.reload()
    by_id.expect_disconnect(ADMINISTRATIVE)
    assert reason(broker, client_id="c1", user="anna", password="secret") == BANNED
    assert reason(broker, user="bruno", password="geheim") == 0
    other.ping()
    seen = len(broker.log)
    bans.write_text("nonsense\n")
    broker.reload()
    broker.wait_for_log(lambda event: "bans not reloaded" in event["message"], seen)
    assert reason(broker, client_id="c1", user="anna", password="secret") == BANNED
    bans.write_text("address 127.0.0.0/8\n")
    broker.reload()
    other.expect_disconnect(ADMINISTRATIVE)
    with Peer(broker.port()) as peer:
        try:
            peer.send(connect("x", user="anna", password="secret"))
        except OSError:
            pass
        peer.expect_end()
    metrics = broker.metrics()
    assert metrics['quelea_bans_enforced_total{by="user"}'] == 1
    assert metrics['quelea_bans_enforced_total{by="client"}'] == 2
    assert metrics['quelea_bans_enforced_total{by="address"}'] == 1
    cut = sum(v for name, v in metrics.items() if name.startswith("quelea_banned_disconnects"))
    assert cut == 2


def test_who_connects_too_often_is_kept_off(start, passwords):
    config = LISTENER + (
        '[auth]\npassword_file = "{dir}/passwords"\nflapping_max = 3\nflapping_window_secs = 600\n'
    )
    broker = start(config, {"passwords": passwords})
    # Nobody can have others banned without their password.
    for _ in range(10):
        assert reason(broker, client_id="c1", user="anna", password="x") == NOT_AUTHORIZED
    got = [reason(broker, client_id="c1", user="anna", password="secret") for _ in range(6)]
    assert got == [0, 0, 0, BANNED, BANNED, BANNED]
    assert reason(broker, client_id="c2", user="anna", password="secret") == 0
    assert broker.metrics()['quelea_bans_enforced_total{by="flapping"}'] == 3


def test_refused_takeovers_by_others_ban_nobody(start, passwords):
    config = LISTENER + (
        '[auth]\npassword_file = "{dir}/passwords"\nflapping_max = 3\nflapping_window_secs = 600\n'
    )
    broker = start(config, {"passwords": passwords})
    anna = {"client_id": "c1", "user": "anna", "password": "secret"}
    bruno = {"client_id": "c1", "user": "bruno", "password": "geheim"}
    with Peer(broker.port()).accepted(**anna) as owner:
        got = [reason(broker, **bruno) for _ in range(9)]
        assert got == [NOT_AUTHORIZED] * 9
        owner.ping()
        # The same client id is bruno's own business elsewhere, and anna's here.
        assert [reason(broker, **anna) for _ in range(3)] == [0, 0, BANNED]
    assert reason(broker, **bruno) == 0, "the session has ended, and bruno was never in"


POLICY = """
[[groups]]
name = "near"
query = 'attributes.site in ["berlin", "bonn"]'

[[spaces]]
name = "sites"
templates = ["sites/${client.attributes.site}/#"]

[[spaces]]
name = "news"
templates = ["news/${client.id}"]

[[bindings]]
group = "near"
space = "sites"
permission = "both"

[[bindings]]
group = "$all"
space = "news"
permission = "subscribe"
"""


def test_a_policy_goes_by_attributes_and_may_change(start):
    config = BY_SECRET + '[access]\npolicy_file = "{dir}/policy.toml"\n'
    broker = start(config, {"secret": SECRET, "policy.toml": POLICY})
    near = {"user": "x", "password": hs256(claims(site="bonn"))}
    far = {"user": "x", "password": hs256(claims(site="paris"))}
    with (
        Peer(broker.port()).accepted(client_id="near", **near) as one,
        Peer(broker.port()).accepted(client_id="far", **far) as other,
    ):
        assert may_publish(one, "sites/bonn/t") and not may_publish(one, "sites/berlin/t")
        assert may_subscribe(one, "news/near") and not may_publish(one, "news/near")
        assert may_subscribe(other, "news/far") and not may_subscribe(other, "news/near")
        assert not may_publish(other, "sites/paris/t")
        # Half a policy is none: the old one stays.
        policy = broker.directory / "policy.toml"
        policy.write_text(POLICY.replace("near", "nobody", 1))
        broker.reload()
        broker.wait_for_log(lambda event: "unknown group 'near'" in event.get("error", ""))
        assert may_publish(one, "sites/bonn/t") and not may_publish(other, "sites/paris/t")
        policy.write_text(POLICY.replace('"bonn"', '"paris"'))
        broker.reload()
        eventually(lambda: may_publish(other, "sites/paris/t"))
        assert not may_publish(one, "sites/bonn/t")


def test_a_decision_of_a_policy_is_explained(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)

    def run(*arguments):
        command = [QUELEA, "policy", *arguments[:1], str(file), *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert run("check") == (0, "valid: groups 1, spaces 2 with 2 templates, bindings 2, rules 0\n")
    code, told = run("test", "publish", "sites/bonn/t", "-a", "site=bonn")
    assert code == 0 and "near may publish and subscribe to sites" in told
    code, told = run("test", "publish", "sites/paris/t", "-a", "site=paris")
    assert code == 1 and told.startswith("groups: $all\n") and "denied" in told
    code, told = run("test", "subscribe", "news/c1", "-i", "c1")
    assert code == 0 and "(line 12)" in told and "which the client lacks" in told
    file.write_text(POLICY.replace('"both"', '"all"'))
    code, told = run("check")
    assert code == 2 and "policy.toml:17:" in told and "got 'all'" in told


AUTH, CONNACK = 0xF0, 0x20
TOKEN_METHOD = "OAUTH2-JWT"


def by_token(token, method=TOKEN_METHOD):
    return b"\x15" + prefixed(method) + b"\x16" + prefixed(token)


def renew(token):
    properties = by_token(token)
    return packet(AUTH, b"\x19" + varint(len(properties)) + properties)


def test_a_token_in_auth_packets_is_renewed_without_a_new_connection(start):
    config = BY_SECRET.replace("kind", "leeway_secs = 0\nkind")
    broker = start(config, {"secret": SECRET})

    def token(secs, **more):
        return hs256(claims(**{"exp": int(time.time()) + secs, **more}))

    assert reason(broker, properties=by_token(token(60), "OTHER")) == 0x8C
    assert reason(broker, properties=by_token("no token")) == NOT_AUTHORIZED
    assert reason(broker, properties=by_token(hs256(claims(), "y" * 40))) == NOT_AUTHORIZED
    renewed, left = (Peer(broker.port()) for _ in range(2))
    for peer in (renewed, left):
        peer.accepted(client_id=f"c{id(peer)}", properties=by_token(token(4)))
    renewed.send(renew(token(60)))
    assert renewed.expect(AUTH)[0] == 0
    left.expect_disconnect(NOT_AUTHORIZED)
    renewed.ping()
    # Only a token of the same user goes on, and a wrong one ends the connection.
    for bad in (token(60, sub="eve"), hs256(claims(), "y" * 40), "no token"):
        with Peer(broker.port()).accepted(properties=by_token(token(60))) as peer:
            peer.send(renew(bad))
            peer.expect_disconnect(NOT_AUTHORIZED)
