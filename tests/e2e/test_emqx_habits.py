"""What configurations and services written for EMQX say, and mean here."""

import base64
import json
import socket
import ssl
from urllib.parse import parse_qs, urlsplit

import pytest

from test_access import may_publish, may_subscribe
from test_identity import BY_SECRET, LISTENER, NOT_AUTHORIZED, reason, service
from tokens import SECRET, as_json, claims, hs256
from wire import Peer, packet, prefixed, varint

__all__ = ["service"]


def refused(broker, **options):
    return reason(broker, **options) == NOT_AUTHORIZED


def test_rules_in_a_token_go_by_the_names_of_its_client(start):
    rules = [
        {"permission": "deny", "action": "pub", "topic": "a/closed", "clientid_re": "^c[0-9]+$"},
        {"permission": "deny", "action": "pub", "topic": "a/mine", "username": "bruno"},
        {"permission": "allow", "action": "pubsub", "topics": ["a/#", "eq z/+/x"], "username_re": "^an"},
        {"permission": "deny", "action": "all", "topic": ["#", "$SYS/#"]},
    ]
    broker = start(BY_SECRET, {"secret": SECRET})
    for name, client_id, closed, mine, wild in [
        ("anna", "c1", False, True, True), ("anna", "d1", True, True, True),
        ("bruno", "d2", False, False, False),
    ]:
        token = hs256(claims(sub=name, acl=rules))
        with Peer(broker.port()).accepted(client_id=client_id, user="x", password=token) as peer:
            assert may_publish(peer, "a/closed") == closed, (name, client_id)
            assert may_publish(peer, "a/mine") == mine, (name, client_id)
            assert may_subscribe(peer, "z/+/x") == wild, (name, client_id)
            assert not may_subscribe(peer, "z/+/y")


@pytest.mark.parametrize("odd", [
    {"clientid_re": "("}, {"clientid_re": "(?=c)"}, {"username_re": ""}, {"zone": "default"},
    {"listener": "tcp:default"}, {"username": ["anna"]}, {"topic": "x/${cert_common_name}"},
])
def test_one_rule_that_is_not_understood_refuses_the_whole_set(start, odd):
    good = {"permission": "allow", "action": "all", "topic": "a/#"}
    broker = start(BY_SECRET, {"secret": SECRET})
    assert refused(broker, user="x", password=hs256(claims(acl=[good, {**good, **odd}])))
    assert not refused(broker, user="x", password=hs256(claims(acl=[good])))
    line = broker.wait_for_log(lambda event: "access rules (acl)" in event.get("detail", ""))
    assert line


def test_the_name_of_a_certificate_stands_in_rules(start, certs):
    config = """
[[authentication]]
name = "tokens"
kind = "jwt"
secret_file = "{dir}/secret"
[[listeners]]
url = "tls://127.0.0.1:0"
[listeners.tls]
certificate = "%s/server.crt"
key = "%s/server.key"
client_ca = "%s/ca.crt"
client_auth = "require"
""" % (certs, certs, certs)
    broker = start(config, {"secret": SECRET})
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.check_hostname = False
    context.load_cert_chain(certs / "client.crt", certs / "client.key")
    stream = socket.create_connection(("127.0.0.1", broker.port("tls")), 20)
    token = hs256(claims(acl={"all": ["of/${cert_common_name}/#"]}))
    with Peer(context.wrap_socket(stream)).accepted(user="x", password=token) as peer:
        assert may_publish(peer, "of/anna/a") and not may_publish(peer, "of/other/a")


def test_a_token_in_the_username_and_a_secret_in_base64(start):
    config = BY_SECRET.replace("kind", 'from = "username"\nsecret_base64_encoded = true\nkind')
    broker = start(config, {"secret": base64.b64encode(SECRET.encode()).decode() + "\n"})
    token = hs256(claims())
    with Peer(broker.port(), 4).accepted(client_id="c1", user=token):
        broker.wait_for_log(lambda event: event.get("username") == "anna")
    assert refused(broker, user="x", password=token), "it is not looked for in the password"
    stale = hs256(claims(exp=1))
    assert refused(broker, client_id="c2", user=stale)
    broker.wait_for_log(lambda event: "has expired" in event.get("detail", ""))
    forged = hs256(claims(), "y" * 40)
    assert refused(broker, client_id="c3", user=forged)
    broker.wait_for_log(
        lambda event: event.get("client_id") == "c3" and "authentication failed" in event["detail"]
    )
    for secret in (token, stale, forged):
        assert secret not in broker.log_text(), "a token is a secret"
    # Enhanced authentication brings it as data, wherever else it may be.
    properties = b"\x15" + prefixed("OAUTH2-JWT") + b"\x16" + prefixed(token)
    with Peer(broker.port()).accepted(client_id="c4", properties=properties) as peer:
        data = b"\x15" + prefixed("OAUTH2-JWT") + b"\x16" + prefixed(hs256(claims(exp=4102444800)))
        peer.send(packet(0xF0, b"\x19" + varint(len(data)) + data))
        assert peer.expect(0xF0)[:1] in (b"", b"\0")


def test_placeholders_in_path_query_and_headers(start, service):
    asked = service(lambda *_: as_json({"result": "allow"}))
    broker = start(f"""
[[authentication]]
name = "service"
kind = "http"
url = "{asked.url}/of/${{username}}/auth?id=${{clientid}}&from=${{peerhost}}"
headers = ["X-Who: ${{username}} (${{clientid}})", "X-Plain: 1"]
body = ["password=${{password}}"]
{LISTENER}
""")
    assert reason(broker, client_id="a&b/c", user="anna b", password="p") == 0
    method, path, body, headers = asked.asked.pop()
    assert (method, headers["x-who"], headers["x-plain"]) == ("POST", "anna b (a&b/c)", "1")
    assert urlsplit(path).path == "/of/anna%20b/auth"
    assert parse_qs(urlsplit(path).query) == {"id": ["a&b/c"], "from": ["127.0.0.1"]}
    assert json.loads(body) == {"password": "p"}
    for name in ("..", "a/b", ".", "a\\b"):
        assert refused(broker, client_id="c", user=name, password="p"), name
    assert asked.asked == [], "the service was asked about somebody else"
    broker.wait_for_log(lambda event: "path of `url`" in event.get("detail", ""))


def test_a_get_has_its_fields_behind_the_query_of_its_url(start, service):
    answer = b"result=allow&is_superuser=true"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    asked = service(lambda *_: (200, form, answer))
    broker = start(f"""
[[authentication]]
name = "service"
kind = "http"
method = "get"
url = "{asked.url}/auth?v=1"
{LISTENER}
[access]
acl_file = "{{dir}}/acl"
""", {"acl": "topic read nothing\n"})
    with Peer(broker.port()).accepted(client_id="c 1", user="root", password="p&q") as peer:
        assert may_publish(peer, "anything")
    method, path, body, _ = asked.asked[0]
    assert (method, body, urlsplit(path).path) == ("GET", b"", "/auth")
    told = {"v": ["1"], "clientid": ["c 1"], "username": ["root"], "password": ["p&q"]}
    assert parse_qs(urlsplit(path).query) == told


def test_rules_of_one_client_are_not_those_of_the_next(start, service):
    rule = {"permission": "allow", "action": "all", "topic": "secret/#", "clientid": "c1"}
    rest = {"permission": "deny", "action": "all", "topic": ["#", "$SYS/#"]}
    answer = as_json({"result": "allow", "acl": [rule, rest]}, **{"Cache-Control": "max-age=600"})
    asked = service(lambda *_: answer)
    broker = start(f"""
[[authentication]]
name = "service"
kind = "http"
url = "{asked.url}/auth"
body = ["username=${{username}}", "password=${{password}}"]
{LISTENER}
""")
    for client_id, may in (("c1", True), ("c2", False), ("c1", True)):
        with Peer(broker.port()).accepted(client_id=client_id, user="a", password="p") as peer:
            assert may_publish(peer, "secret/x") == may, client_id
    assert len(asked.asked) == 3, "what holds for one client only was remembered"
