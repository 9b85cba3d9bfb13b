"""Rules in order of the policy file: by action, QoS, retain flag, topic, address, listener, group."""

import json
import subprocess

import pytest

from broker import QUELEA
from test_clients import Paho
from tokens import SECRET, claims, hs256
from wire import PUBACK, SUBACK, Peer, publish, subscribe

NOT_AUTHORIZED = 0x87

CONFIG = """
[[listeners]]
name = "inside"
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[[listeners]]
name = "outside"
url = "tcp://127.0.0.1:0"
allow_anonymous = true
proxy_protocol = true
trusted_proxies = ["127.0.0.1"]
[[authentication]]
name = "tokens"
kind = "jwt"
secret_file = "{dir}/secret"
attributes = ["type=${claims.type}", "vin=${claims.vin}"]
[access]
policy_file = "{dir}/policy.toml"
"""

POLICY = """
[[groups]]
name = "cars"
query = "attributes.type = 'car'"

[[rules]]
effect = "deny"
action = "subscribe"
topics = ["eq #"]

[[rules]]
effect = "deny"
action = "publish"
topics = ["#"]
retain = true
listeners = ["outside"]

[[rules]]
effect = "allow"
topics = ["cars/${client.attributes.vin}/#"]
group = "cars"

[[rules]]
effect = "deny"
topics = ["cars/#", "plans/${client.id}"]

[[rules]]
effect = "allow"
action = "publish"
topics = ["far/#"]
addresses = ["192.0.2.0/24", "2001:db8::/32"]

[[rules]]
effect = "deny"
action = "publish"
topics = ["far/#"]

[[rules]]
effect = "deny"
topics = ["fast/#"]
qos = [2]

[[rules]]
effect = "allow"
topics = ["#"]
"""


def code(peer, topic, **options):
    """The reason of the PUBACK or PUBREC."""
    peer.send(publish(topic, "x", **{"qos": 1, "packet_id": 9, **options}))
    got = peer.recv()
    assert got[0] in (PUBACK, 0x50), got
    if got[0] == 0x50 and (len(got[1]) == 2 or got[1][2] < 0x80):
        peer.send(b"\x62\x02\x00\x09").expect(0x70)
    return got[1][2] if len(got[1]) > 2 else 0


def granted(peer, topic_filter, qos=0):
    peer.send(subscribe(topic_filter, qos))
    return peer.expect(SUBACK)[-1]


@pytest.fixture
def ruled(start):
    return start(CONFIG, {"secret": SECRET, "policy.toml": POLICY})


def test_the_first_rule_that_matches_decides(ruled):
    peer = Peer(ruled.port()).accepted(client_id="c1")
    assert code(peer, "free/a") in (0, 0x10) and code(peer, "cars/v7/x") == NOT_AUTHORIZED
    assert code(peer, "plans/c1") == NOT_AUTHORIZED and code(peer, "plans/c2") != NOT_AUTHORIZED
    assert code(peer, "free/a", retain=True) != NOT_AUTHORIZED
    assert code(peer, "fast/a") != NOT_AUTHORIZED
    assert code(peer, "fast/a", qos=2) == NOT_AUTHORIZED
    assert granted(peer, "#") == NOT_AUTHORIZED and granted(peer, "fast/#", 2) == NOT_AUTHORIZED
    # Nothing retained is sent (0x20).
    assert granted(peer, "+/#", 0x21) == 1 and granted(peer, "fast/#", 0x21) == 1
    assert granted(peer, "cars/v7/#") == NOT_AUTHORIZED
    line = ruled.wait_for_log(lambda event: event["message"] == "access denied")
    assert line["rule"] == "the rule in line 24 of the policy file"


def from_address(broker, address, **options):
    """Behind a proxy, which says the address."""
    peer = Peer(broker.port("tcp", 1))
    peer.stream.sendall(f"PROXY TCP4 {address} 192.0.2.1 1000 1883\r\n".encode())
    return peer.accepted(**options)


def test_addresses_and_listeners_are_those_of_the_client(ruled):
    inside = Peer(ruled.port()).accepted(client_id="inside")
    near = from_address(ruled, "198.51.100.7", client_id="near")
    far = from_address(ruled, "192.0.2.77", client_id="far")
    assert code(inside, "far/x") == NOT_AUTHORIZED == code(near, "far/x")
    assert code(far, "far/x") != NOT_AUTHORIZED
    assert code(inside, "a", retain=True) != NOT_AUTHORIZED
    assert code(near, "a", retain=True) == NOT_AUTHORIZED
    assert code(near, "a") != NOT_AUTHORIZED
    # With another address it is another matter, also for the same session.
    back = Peer(ruled.port()).accepted(client_id="far", clean=False)
    assert code(back, "far/x") == NOT_AUTHORIZED


def test_groups_and_attributes_of_paho_clients(ruled):
    token = hs256(claims(type="car", vin="v7"))
    car = Paho(ruled, client_id="car")
    car.client.username_pw_set("car", token)
    car.connect()
    car.subscribe("cars/v7/#", 1)
    other = Peer(ruled.port()).accepted(
        client_id="other", user="x", password=hs256(claims(type="car", vin="v8"))
    )
    assert code(other, "cars/v8/x") != NOT_AUTHORIZED and code(other, "cars/v7/x") == NOT_AUTHORIZED
    car.client.publish("cars/v7/x", b"own", 1)
    assert car.message().payload == b"own"
    car.close()


def test_a_change_reaches_who_is_connected_at_once(ruled):
    policy = ruled.directory / "policy.toml"
    subscriber = Peer(ruled.port()).accepted(client_id="s").subscribed("free/#")
    publisher = Peer(ruled.port()).accepted(client_id="p")
    assert code(publisher, "free/a") == 0
    assert subscriber.message()[0] == "free/a"
    no_more = '[[rules]]\neffect = "deny"\naction = "subscribe"\ntopics = ["free/secret"]\n'
    policy.write_text(no_more + POLICY)
    ruled.reload()
    ruled.wait_for_log(lambda event: event["message"] == "access rules reloaded")
    assert code(publisher, "free/secret") in (0, 0x10)
    assert code(publisher, "free/b") == 0
    assert subscriber.message()[0] == "free/b", "nothing secret came before"
    # Half a policy is none.
    for wrong, told in [
        (POLICY.replace('"outside"', '"nowhere"', 1), "unknown listener 'nowhere'"),
        (POLICY.replace('effect = "deny"', 'effect = "perhaps"', 1), "got 'perhaps'"),
    ]:
        seen = len(ruled.log)
        policy.write_text(wrong)
        ruled.reload()
        line = ruled.wait_for_log(lambda event: "access rules not reloaded" in event["message"], seen)
        assert told in line["error"]
    assert code(publisher, "free/secret") in (0, 0x10)
    assert code(publisher, "cars/v7/x") == NOT_AUTHORIZED


def test_what_waits_for_who_is_away_is_checked_when_it_is_back(ruled):
    kept = b"\x11\x00\x00\x0e\x10"
    client = from_address(ruled, "192.0.2.77", client_id="far", clean=False, properties=kept)
    assert granted(client, "free/#", 1) == 1
    client.close()
    publisher = Peer(ruled.port()).accepted(client_id="p")
    assert code(publisher, "free/a") == 0
    deny = '[[rules]]\neffect = "deny"\naction = "subscribe"\ntopics = ["free/#"]\n'
    near = deny + 'addresses = ["127.0.0.0/8"]\n'
    (ruled.directory / "policy.toml").write_text(near + POLICY)
    ruled.reload()
    ruled.wait_for_log(lambda event: event["message"] == "access rules reloaded")
    # While it is away nobody knows from where it will be back.
    assert code(publisher, "free/b") == 0
    back = from_address(ruled, "192.0.2.77", client_id="far", clean=False, properties=kept)
    assert [back.message()[0] for _ in range(2)] == ["free/a", "free/b"]
    back.close()
    assert code(publisher, "free/c") == 0
    near = Peer(ruled.port()).accepted(client_id="far", clean=False, properties=kept)
    near.ping()


def test_a_rule_that_decides_is_explained(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)

    def test(*arguments):
        command = [QUELEA, "policy", "test", str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    assert test("publish", "a", "-r", "--listener", "outside") == (
        1,
        "groups: $all\n  group cars needs the attribute 'type', which the client lacks\n"
        "denied:\n  the rule in line 12 denies it\n",
    )
    status, told = test("publish", "cars/v7/x", "-a", "type=car", "-a", "vin=v7")
    assert status == 0 and "the rule in line 19 allows it" in told
    status, told = test("publish", "far/x", "--address", "192.0.2.9")
    assert status == 0 and "line 28" in told
    assert test("subscribe", "fast/#", "-q", "2")[0] == 1
    assert test("subscribe", "fast/#", "-q", "1")[0] == 0


TOKENS = """[[authentication]]
name = "corp"
kind = "jwt"
secret_file = "secret"
"""
SERVICE = '[authorization]\nurl = "http://127.0.0.1:9/acl"\n'
GRANT = '[[rules]]\neffect = "allow"\naction = "publish"\ntopics = ["free/#"]\n'


def test_rules_of_a_token_are_tested_and_a_service_is_not_asked(tmp_path):
    (tmp_path / "policy.toml").write_text(GRANT)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "plain.toml").write_text(TOKENS)
    (tmp_path / "asking.toml").write_text(TOKENS + SERVICE)
    acl = [{"permission": "deny", "action": "publish", "topic": "free/secret"},
           {"permission": "allow", "action": "all", "topic": "${clientid}/#"}]  # fmt: skip
    (tmp_path / "token").write_text(hs256(claims(acl=acl)) + "\n")
    (tmp_path / "forged").write_text(hs256(claims(acl=acl), "x" * 40))
    (tmp_path / "claims").write_text(json.dumps({"sub": "anna", "acl": {"pub": ["up"]}}))

    def test(*arguments, config=None, token="token"):
        command = [QUELEA, "policy", "test", "policy.toml", *arguments, "-i", "c1"]
        command += ["--config", config] if config else []
        command += ["--token", token] if token else []
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
        )
        return done.returncode, done.stdout + done.stderr

    status, told = test("publish", "c1/x", config="plain.toml")
    assert status == 0 and "verified by provider 'corp', username 'anna'" in told
    status, told = test("publish", "free/secret")
    assert status == 1 and "NOT verified" in told and "the token denies it: 'free/secret'" in told
    assert test("publish", "free/x")[0] == 0, "a list leaves the rest to the policy"
    assert test("publish", "other")[0] == 1
    status, told = test("publish", "free/x", token="claims")
    assert status == 1 and "NOT verified" in told, "an object denies the rest"
    # Whether the service would allow it is not known here; what rules decide is.
    for action in ("publish", "subscribe", "receive"):
        status, told = test(action, "other", config="asking.toml")
        assert status == 6 and "undecided:" in told and "allowed:" not in told, action
    assert test("publish", "other", config="asking.toml", token=None)[0] == 6
    assert test("publish", "free/secret", config="asking.toml")[0] == 1
    assert test("publish", "c1/x", config="asking.toml")[0] == 0
    # A refused log-in is no verdict on rules.
    for options in ({"token": "forged"}, {"token": "policy.toml"}, {"token": "claims"}):
        status, told = test("publish", "c1/x", config="plain.toml", **options)
        assert status == 2 and "refuses a login" in told and "allowed:" not in told, options
    assert test("publish", "c1/x", "-a", "a=b")[0] == 2
    assert test("publish", "c1/x", config="missing.toml")[0] == 2
