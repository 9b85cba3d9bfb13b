"""Namespaces: tenants on one broker who know nothing of each other."""

import queue
import select
import ssl
import subprocess
import threading

import paho.mqtt.client as paho
import pytest

from broker import QUELEA, eventually
from slow_sync import Gate
from test_api import Api, ctl
from tokens import SECRET, claims, hs256
from wire import CONNACK, Peer, connect

BANNED, NOT_AUTHORIZED = "Banned", "Not authorized"

TENANTS = """
[durability]
level = "fsync"

[[namespaces]]
name = "red"

[[namespaces]]
name = "blue"
"""

BY_USERNAME = (
    TENANTS
    + """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
namespace = "default"
namespace_from = ["username"]
"""
)


class Client:
    """A paho client of MQTT 5, and what it got."""

    def __init__(self, broker, client_id, user=None, password=None, port=None, tls=None, **connect):
        self.got = queue.Queue()
        self.answers = queue.Queue()
        self.over = threading.Event()
        paho_client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
        if user is not None:
            paho_client.username_pw_set(user, password)
        if tls:
            paho_client.tls_set_context(tls)
        will = connect.pop("will", None)
        if will:
            paho_client.will_set(*will)
        keeps = connect.pop("keeps", False)
        paho_client.on_connect = self._on_connect
        paho_client.on_disconnect = lambda *_: self.over.set()
        paho_client.on_subscribe = lambda _, __, mid, codes, ___: self.answers.put(mid)
        paho_client.on_message = lambda _, __, m: self.got.put((m.topic, m.payload.decode(), m.retain))
        self.paho = paho_client
        self.connected = queue.Queue()
        properties = paho.Properties(paho.PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600 if keeps else 0
        host = connect.pop("host", "127.0.0.1")
        paho_client.connect(
            host, port or broker.port(), clean_start=not keeps, properties=properties
        )
        paho_client.loop_start()
        self.present, self.reason = self.connected.get(timeout=20)

    def _on_connect(self, _, __, flags, reason, ___):
        self.connected.put((flags.session_present, str(reason)))

    def subscribe(self, *filters):
        for each in filters:
            self.paho.subscribe(each, 1)
            self.answers.get(timeout=20)
        return self

    def publish(self, topic, text, retain=False, qos=1):
        self.paho.publish(topic, text, qos, retain).wait_for_publish(20)

    def next(self):
        return self.got.get(timeout=20)

    def fenced(self, fence="fence"):
        """All that came before a message that it sends to itself now."""
        self.subscribe(fence)
        self.publish(fence, "fence")
        before = []
        while (message := self.next())[0] != fence:
            before.append(message)
        return before

    def leave(self):
        self.paho.disconnect()
        self.over.wait(20)
        self.paho.loop_stop()

    def break_off(self):
        """Without a DISCONNECT."""
        self.paho.loop_stop()
        self.paho._sock_close()


def total(broker, name):
    """The sum of a metric over its labels."""
    found = broker.metrics().items()
    return sum(value for key, value in found if key.split("{")[0] == name)


@pytest.fixture
def join():
    made = []

    def make(*arguments, **options):
        made.append(Client(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.paho.disconnect()
        one.paho.loop_stop()


def test_two_tenants_on_one_port_have_the_same_ids_and_topics_and_share_nothing(start, join):
    broker = start(BY_USERNAME)
    red, blue, nobody = (join(broker, "phone", user) for user in ("red:anna", "blue:anna", None))
    for one in (red, blue, nobody):
        assert one.reason == "Success"
        one.subscribe("#", "+/x", "$share/g/#", "site/x")
    red.publish("site/x", "for red", retain=True)
    # Once for each of #, +/x and site/x together, and once for the group.
    assert {red.next(), red.next()} == {("site/x", "for red", False)}
    assert red.fenced("fence/red") == []
    assert blue.fenced("fence/blue") == [] and nobody.fenced("fence/nobody") == []
    assert not any(one.over.is_set() for one in (red, blue, nobody)), "nobody was taken over"
    late = join(broker, "late", "blue:bea").subscribe("#")
    assert late.fenced() == [], "a retained message of another tenant"
    own = join(broker, "late", "red:bea").subscribe("#")
    assert own.next() == ("site/x", "for red", True)


def test_what_tenants_have_is_theirs_after_a_crash(start, join):
    broker = start(BY_USERNAME)
    for tenant in ("red:", "blue:", ""):
        away = join(broker, "away", tenant + "anna", keeps=True)
        away.subscribe("t/#", "$share/g/jobs/+")
        away.break_off()
        eventually(lambda: total(broker, "quelea_connections") == 0)
        with_name = tenant or "default"
        publisher = join(broker, "publisher", tenant + "bea")
        publisher.publish("t/a", f"queued {with_name}")
        publisher.publish("jobs/1", f"job {with_name}")
        publisher.publish("kept", f"kept {with_name}", retain=True)
        publisher.leave()
    broker.restart("kill")
    for tenant in ("red:", "blue:", ""):
        with_name = tenant or "default"
        away = join(broker, "away", tenant + "anna", keeps=True)
        assert away.present
        assert {away.next()[1], away.next()[1]} == {f"queued {with_name}", f"job {with_name}"}
        assert away.fenced(f"t-fence/{with_name[:-1]}") == []
        reader = join(broker, "reader", tenant + "carl").subscribe("#")
        assert reader.next() == ("kept", f"kept {with_name}", True)
        assert all(text.endswith(("fence",)) for _, text, _ in reader.fenced())
        away.leave()
        reader.leave()


def test_a_will_is_heard_by_its_tenant_only(start, join):
    broker = start(BY_USERNAME)
    red, blue = (join(broker, "listener", f"{tenant}:a") for tenant in ("red", "blue"))
    red.subscribe("will/#"), blue.subscribe("will/#")
    dying = join(broker, "dying", "red:b", will=("will/x", "gone", 1, False))
    dying.break_off()
    assert red.next() == ("will/x", "gone", False)
    assert blue.fenced() == []


def test_a_listener_has_the_namespace_that_it_names(start, join):
    config = TENANTS
    for tenant in ("red", "blue"):
        config += f"""
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
namespace = "{tenant}"
"""
    broker = start(config)
    red, blue = (join(broker, "c", port=broker.port(nth=nth)).subscribe("#") for nth in (0, 1))
    red.publish("t", "to red")
    assert red.next() == ("t", "to red", False)
    assert blue.fenced() == []


def test_a_host_name_leads_to_its_namespace(start, join, certs):
    config = TENANTS.replace('name = "red"', 'name = "red"\nhosts = ["LocalHost"]') + f"""
[[listeners]]
url = "tls://127.0.0.1:0"
allow_anonymous = true
namespace = "default"
namespace_from = ["host"]
[listeners.tls]
certificate = "{certs / "server.crt"}"
key = "{certs / "server.key"}"
"""
    broker = start(config)
    trusting = ssl.create_default_context(cafile=certs / "ca.crt")
    port = broker.port("tls")
    red, other = (
        join(broker, "c", port=port, tls=trusting, host=host).subscribe("#")
        for host in ("localhost", "127.0.0.1")
    )
    red.publish("t", "to red")
    assert red.next() == ("t", "to red", False)
    assert other.fenced() == []


def test_a_claim_decides_and_no_other_word_goes_against_it(start, join):
    config = TENANTS + """
[[authentication]]
name = "tokens"
kind = "jwt"
secret_file = "{dir}/secret"
attributes = ["namespace=${claims.tenant}"]

[[listeners]]
url = "tcp://127.0.0.1:0"
namespace_from = ["attribute", "username"]
"""
    broker = start(config, {"secret": SECRET})

    def enter(sub, tenant):
        token = hs256(claims(sub=sub, tenant=tenant))
        return join(broker, "c", "x", token)

    red, blue = enter("anna", "red").subscribe("#"), enter("blue:anna", "blue").subscribe("#")
    red.publish("t", "to red")
    assert red.next() == ("t", "to red", False) and blue.fenced() == []
    assert enter("blue:anna", "red").reason == NOT_AUTHORIZED
    assert enter("anna", "green").reason == NOT_AUTHORIZED
    assert enter("anna", ["red", "blue"]).reason == NOT_AUTHORIZED


def test_unknown_namespaces_are_refused_or_made(start, join):
    broker = start(BY_USERNAME)
    assert join(broker, "c", "green:a").reason == NOT_AUTHORIZED
    broker.wait_for_log(lambda event: "unknown namespace" in str(event))
    broker = start(BY_USERNAME + 'namespace_unknown = "create"\n')
    green = join(broker, "away", "green:a", keeps=True).subscribe("t")
    green.leave()
    other = join(broker, "away", "yellow:a", keeps=True)
    assert (other.present, other.reason) == (False, "Success")
    other.leave()
    broker.restart("kill")
    assert join(broker, "away", "green:a", keeps=True).present


def test_log_ins_are_answered_while_a_namespace_is_made(start):
    config = BY_USERNAME + 'namespace_unknown = "create"\n'
    with Gate("name-maker") as gate:
        broker = start(config, environment=gate.environment)
        gate.shut()

        def come(client_id, namespace):
            asks = connect(client_id=client_id, user=f"{namespace}:x")
            return Peer(broker.port()).send(asks)

        waiting = [come("a", "green"), come("b", "green")]
        gate.wait_for(1)
        waiting.append(come("c", "yellow"))
        gone = [come("d", "green") for _ in range(8)]
        for peer in gone:
            peer.close()
        silent = [Peer(broker.port()) for _ in range(8)]
        for number in range(8):
            assert Peer(broker.port()).connect(client_id=f"own {number}", user="red:a")[1] == 0
        answered, _, _ = select.select([peer.stream for peer in waiting], [], [], 0)
        assert answered == []
        gate.open()
        for peer in waiting:
            assert peer.expect(CONNACK)[1] == 0
        # The answers for those who have gone are not for those who came behind them.
        for number, peer in enumerate(silent):
            assert peer.connect(client_id=f"silent {number}", user="blue:a")[1] == 0
        # Log lines are read by a thread of their own.
        broker.wait_for_log(lambda event: event.get("namespace") == "yellow")
    made = [event for event in broker.log if event["message"] == "namespace created for a client"]
    assert [event["namespace"] for event in made] == ["green", "yellow"]


def test_who_waits_for_a_namespace_waits_no_longer_than_for_any_log_in(start):
    config = BY_USERNAME + 'namespace_unknown = "create"\n[limits]\nconnect_timeout_secs = 1\n'
    with Gate("name-maker") as gate:
        broker = start(config, environment=gate.environment)
        gate.shut()
        with Peer(broker.port()).send(connect(user="green:a")) as peer:
            peer.expect_end()
        broker.wait_for_log(lambda event: "not decided in time" in event["message"])
        assert Peer(broker.port()).connect(user="red:a")[1] == 0
        gate.open()
        # What was asked for is made, whoever has left.
        broker.wait_for_log(lambda event: event["message"] == "namespace created for a client")


def test_one_address_makes_so_many_namespaces_at_once(start):
    config = BY_USERNAME + 'namespace_unknown = "create"\n'
    with Gate("name-maker") as gate:
        broker = start(config, environment=gate.environment)
        gate.shut()

        def come(name, source=None):
            return Peer(broker.port(), source=source).send(connect(user=f"{name}:a"))

        waiting = [come(f"n{number}") for number in range(32)]
        waiting.append(come("n0"))
        # Each second brings one more, so that what comes now may be the first above the limit.
        refused = [come(f"more{number}") for number in range(64)]
        broker.wait_for_log(lambda event: "too many new namespaces" in event.get("detail", ""))
        other = come("other", "127.0.0.2")
        assert Peer(broker.port()).connect(user="red:a")[1] == 0
        gate.open()
        for peer in [*waiting, other]:
            assert peer.expect(CONNACK)[1] == 0
        reasons = [peer.expect(CONNACK)[1] for peer in refused]
        assert set(reasons) <= {0, 0x9F} and reasons.count(0x9F) > 32


def test_suspending_cuts_off_and_keeps_what_there_is(start, join):
    broker = start(BY_USERNAME)
    red, blue = (join(broker, "c", f"{name}:a", keeps=True) for name in ("red", "blue"))
    red.subscribe("t")
    whole = broker.config.read_text()
    suspended = whole.replace('name = "red"\n', 'name = "red"\nstate = "suspended"\n')
    broker.config.write_text(suspended)
    broker.reload()
    assert red.over.wait(20)
    red.paho.loop_stop()
    assert join(broker, "c", "red:a", keeps=True).reason == BANNED
    assert blue.fenced() == [], "nobody else notices"
    broker.config.write_text(whole)
    broker.reload()
    eventually(lambda: join(broker, "d", "red:a").reason == "Success")
    assert join(broker, "c", "red:a", keeps=True).present


def test_deleting_removes_everything_and_nothing_comes_back(start, join):
    broker = start(BY_USERNAME)
    red = join(broker, "away", "red:a", keeps=True).subscribe("t/#")
    red.publish("kept", "of red", retain=True)
    red.publish("$odd/kept", "of red", retain=True)
    red.leave()
    blue = join(broker, "away", "blue:a", keeps=True).subscribe("t/#")
    blue.publish("kept", "of blue", retain=True)
    blue.leave()
    whole = broker.config.read_text()
    broker.config.write_text(whole.replace('name = "red"\n', 'name = "red"\nstate = "deleted"\n'))
    broker.reload()
    broker.wait_for_log(lambda event: event["message"] == "namespace deleted")
    assert (total(broker, "quelea_sessions"), total(broker, "quelea_retained_messages")) == (1, 1)
    # A crash right behind it brings nothing back.
    broker.restart("kill")
    assert total(broker, "quelea_sessions") == 1
    broker.config.write_text(whole)
    broker.restart("kill")
    again = join(broker, "away", "red:a", keeps=True)
    assert not again.present
    again.subscribe("#", "$odd/#")
    assert again.fenced() == []
    assert join(broker, "away", "blue:a", keeps=True).present


def test_users_and_rules_of_a_namespace_are_its_own(start, join, tmp_path):
    users = tmp_path / "users"
    for name in ("red:anna", "blue:anna", "blue:bruno"):
        command = [QUELEA, "passwd", "-b", str(users), name, name + "-pw"]
        subprocess.run(command, check=True)
    red_rules = 'name = "red"\nacl_file = "{dir}/red.acl"'
    config = BY_USERNAME.replace('name = "red"', red_rules).replace("allow_anonymous = true\n", "")
    config += '[auth]\npassword_file = "{dir}/users"\n'
    acl = "user anna\ntopic readwrite home/#\n"
    broker = start(config, {"users": users.read_text(), "red.acl": acl})
    red = join(broker, "c", "red:anna", "red:anna-pw").subscribe("home/#")
    red.publish("home/a", "1")
    assert red.next() == ("home/a", "1", False)
    red.publish("other", "denied")
    broker.wait_for_log(lambda event: event["message"] == "access denied")
    blue = join(broker, "c", "blue:anna", "blue:anna-pw").subscribe("#")
    blue.publish("other", "fine")
    assert blue.next() == ("other", "fine", False)
    for user, password in [("red:bruno", "blue:bruno-pw"), ("anna", "red:anna-pw")]:
        assert join(broker, "d", user, password).reason == NOT_AUTHORIZED
    # A session is its user's, and the user of another tenant is somebody else.
    kept = join(broker, "kept", "blue:anna", "blue:anna-pw", keeps=True)
    kept.leave()
    assert join(broker, "kept", "blue:bruno", "blue:bruno-pw", keeps=True).reason == NOT_AUTHORIZED
    assert not join(broker, "kept", "red:anna", "red:anna-pw", keeps=True).present


def test_nobody_comes_to_a_namespace_whose_rules_cannot_be_used(start, join):
    """Neither is taken over then, and what is in force can still be tightened."""
    broker = start(BY_USERNAME, {"blue.acl": "topic readwrite #\n", "green.acl": "no rule\n"})
    whole = broker.config.read_text()
    own_file = f'name = "blue"\nacl_file = "{broker.directory}/blue.acl"'
    broker.config.write_text(whole.replace('name = "blue"', own_file))
    broker.reload()
    broker.wait_for_log(lambda event: event["message"] == "namespaces applied")
    blue = join(broker, "c", "blue:a").subscribe("t")
    blue.publish("t", "before")
    assert blue.next() == ("t", "before", False)
    with_green = f'[[namespaces]]\nname = "green"\nacl_file = "{broker.directory}/green.acl"\n'
    broker.config.write_text(broker.config.read_text() + with_green)
    (broker.directory / "blue.acl").write_text("topic read nothing\n")
    broker.reload()
    broker.wait_for_log(lambda event: "namespaces not reloaded" in event["message"])
    assert join(broker, "c", "green:a").reason == NOT_AUTHORIZED
    eventually(lambda: denied(blue))
    (broker.directory / "green.acl").write_text("topic read nothing\n")
    broker.reload()
    eventually(lambda: join(broker, "c", "green:a").reason == "Success")
    assert denied(join(broker, "d", "green:a"))


def test_what_a_namespace_allows_holds_on_while_it_is_closed(start, join):
    """One that the configuration has no more does not become open to those still there."""
    broker = start(BY_USERNAME, {"red.acl": "topic read nothing\n"})
    whole = broker.config.read_text()
    own_file = f'name = "red"\nacl_file = "{broker.directory}/red.acl"'
    ruled = whole.replace('name = "red"', own_file)
    broker.config.write_text(ruled)
    broker.reload()
    broker.wait_for_log(lambda event: event["message"] == "namespaces applied")
    red = join(broker, "c", "red:a", keeps=True, will=("t", "gone", 1, False))
    assert denied(red)
    broker.config.write_text(ruled.replace(f'[[namespaces]]\n{own_file}\n', ""))
    broker.reload()
    assert red.over.wait(20)
    broker.config.write_text(ruled)
    broker.reload()
    eventually(lambda: join(broker, "d", "red:a").reason == "Success")
    assert denied(join(broker, "e", "red:a"))


def denied(client):
    """May it subscribe to anything?"""
    refused = queue.Queue()
    client.paho.on_subscribe = lambda _, __, ___, codes, ____: refused.put(codes[0].is_failure)
    client.paho.subscribe("any/thing", 1)
    return refused.get(timeout=20)


def test_a_tenant_above_its_limits_waits_or_is_refused_and_loses_nothing(start, join):
    limits = 'name = "red"\nmessages_in_per_second_max = 20\nconnections_max = 2\n'
    broker = start(BY_USERNAME.replace('name = "red"\n', limits))
    reader = join(broker, "reader", "red:a").subscribe("t")
    writer = join(broker, "writer", "red:a")
    assert join(broker, "third", "red:a").reason == "Quota exceeded"
    assert join(broker, "third", "blue:a").reason == "Success"
    texts = [str(number) for number in range(60)]
    for text in texts:
        last = writer.paho.publish("t", text, 1)
    last.wait_for_publish(20)
    assert [reader.next()[1] for _ in texts] == texts
    metrics = broker.metrics()
    red = 'namespace="red"'
    assert metrics[f"quelea_namespace_messages_in_total{{{red}}}"] == len(texts)
    assert metrics[f"quelea_namespace_connections{{{red}}}"] == 2
    for limit in ("messages_in", "connections"):
        assert metrics[f'quelea_namespace_refused_total{{{red},limit="{limit}"}}'] > 0, limit


def test_a_tenant_whose_limit_is_none_gets_none(start, join):
    red = 'name = "red"\nsessions_max = 0\n'
    blue = 'name = "blue"\nsubscriptions_max = 0\nretained_bytes_max = 0\n'
    config = BY_USERNAME.replace('name = "red"\n', red).replace('name = "blue"\n', blue)
    broker = start(config)
    assert join(broker, "any", "red:a").reason == "Quota exceeded"
    client = join(broker, "any", "blue:a")
    assert denied(client)
    answers = queue.Queue()
    client.paho.on_publish = lambda _, __, ___, reason, ____: answers.put(str(reason))
    client.paho.publish("t", "kept", 1, retain=True)
    assert answers.get(timeout=20) == "Quota exceeded"


def test_a_broker_does_not_start_without_the_names_of_what_its_logs_have(start, join):
    broker = start(BY_USERNAME)
    join(broker, "away", "blue:a", keeps=True).leave()
    broker.terminate()
    broker.wait()
    names = broker.data / "namespaces"
    whole = names.read_text()
    assert whole.splitlines()[1:] == [
        "quelea namespaces 1", "last 2", "1 configuration open red", "2 configuration open blue",
    ]
    names.unlink()
    twin = broker.data / "shard-000" / "namespaces"
    twin.unlink()
    broker.config.write_text(broker.config.read_text().replace('[[namespaces]]\nname = "blue"', ""))
    with pytest.raises(AssertionError, match="namespaces: it is missing"):
        broker._launch()
    names.write_text(whole)
    broker._launch()
    assert join(broker, "away", "blue:a", keeps=True).reason == BANNED, "it is not configured"


def counts(namespace):
    return {quota["name"]: quota["count"] for quota in namespace["quotas"]}


def test_an_operator_sees_what_each_namespace_may_have_and_has(start, join):
    limits = 'name = "red"\nmessages_in_per_second_max = 50\nconnections_max = 2\n'
    config = BY_USERNAME.replace('name = "red"\n', limits) + '[api]\nlisten = "http"\n'
    broker = start(config)
    api = Api(broker)
    one, other = join(broker, "a", "red:anna"), join(broker, "b", "red:anna")
    assert join(broker, "c", "red:anna").reason != "Success", "one too many"
    one.subscribe("site/#")
    for number in range(3):
        other.publish(f"site/{number}", "x", retain=True)
    assert [one.next()[1] for _ in range(3)] == ["x"] * 3
    red = api("GET", "/namespaces/red")
    assert (red["name"], red["state"], red["maker"]) == ("red", "open", "configuration")
    has = counts(red)
    assert {name: has[name] for name in ("connections", "sessions", "subscriptions")} == {
        "connections": 2, "sessions": 2, "subscriptions": 1,
    }  # fmt: skip
    assert (has["messages_in"], has["messages_out"], has["retained_messages"]) == (3, 3, 3)
    by_name = {quota["name"]: quota for quota in red["quotas"]}
    assert (by_name["connections"]["max"], by_name["sessions"]["max"]) == (2, None)
    assert (by_name["connections"]["refused"], by_name["sessions"]["refused"]) == (1, 0)
    assert [row["name"] for row in api.all("/namespaces", limit=1)] == ["blue", "red"]
    assert set(counts(api("GET", "/namespaces/blue")).values()) == {0}
    assert "green" in api("GET", "/namespaces/green", status=404)["detail"]
    default = api("GET", "/namespaces/default")
    assert (default["name"], default["state"], default["quotas"]) == ("default", "open", [])
    api("GET", "/namespaces?cursor=%25", status=400)
    head, blue, row = ctl(broker, "ns", "list").splitlines()
    assert head.split()[:3] == ["NAME", "STATE", "CONNECTIONS"]
    assert (blue.split()[:2], row.split()[:3]) == (["blue", "open"], ["red", "open", "2"])
    shown = ctl(broker, "ns", "show", "red")
    assert "maker  configuration" in shown
    assert ["connections", "2", "2", "1"] in [line.split() for line in shown.splitlines()]
    assert "state  open" in ctl(broker, "ns", "show", "default")
    ctl(broker, "ns", "show", "green", code=5)


def test_a_namespace_that_is_suspended_or_gone_is_told_as_such(start, join):
    config = BY_USERNAME + '[api]\nlisten = "http"\n'
    broker = start(config)
    api = Api(broker)
    join(broker, "a", "red:anna").publish("site/x", "kept", retain=True)
    whole = broker.config.read_text()
    suspended = whole.replace('name = "red"\n', 'name = "red"\nstate = "suspended"\n')
    broker.config.write_text(suspended)
    broker.reload()
    eventually(lambda: api("GET", "/namespaces/red")["state"] == "suspended")
    eventually(lambda: counts(api("GET", "/namespaces/red"))["connections"] == 0)
    assert counts(api("GET", "/namespaces/red"))["retained_messages"] == 1
    broker.config.write_text(suspended.replace("suspended", "deleted"))
    broker.reload()
    eventually(lambda: [row["name"] for row in api.all("/namespaces")] == ["blue"])
