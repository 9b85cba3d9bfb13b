"""Namespaces where operators look: the API, `quelea ctl`, bans, events."""

import json
import subprocess

import pytest

from broker import QUELEA
from test_api import Api, ctl
from test_events import Stream
from test_namespaces import BY_USERNAME, join  # noqa: F401 (a fixture)

CONFIG = BY_USERNAME + '[api]\nlisten = "http"\n'
ALL = ["default", "red", "blue"]


PROVED = CONFIG + '[auth]\npassword_file = "{dir}/users"\n'


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """A password file with anna, bea and eve in red and in blue; all have the password `pw`."""
    path = tmp_path_factory.mktemp("users") / "users"
    for user in (f"{place}:{name}" for place in ("red", "blue") for name in ("anna", "bea", "eve")):
        subprocess.run([QUELEA, "passwd", "-b", str(path), user, "pw"], check=True)
    return {"users": path.read_text()}


@pytest.fixture
def enter(join):  # noqa: F811
    """As `join`, with the password of the user."""
    return lambda broker, client_id, user=None: join(broker, client_id, user, user and "pw")


def everywhere(broker, join, client_id, **options):  # noqa: F811
    """The same client id in each namespace."""
    users = {"default": None, "red": "red:anna", "blue": "blue:anna"}
    return {name: join(broker, client_id, user, **options) for name, user in users.items()}


def test_lists_are_of_all_namespaces_and_one_thing_is_of_the_one_that_is_named(start, join):  # noqa: F811
    broker = start(CONFIG)
    api = Api(broker)
    phones = everywhere(broker, join, "phone")
    for name, phone in phones.items():
        phone.subscribe("site/#", "$share/g/jobs")
        phone.publish("site/mode", f"of {name}", retain=True)
    join(broker, "other", "red:anna")

    def rows(path, field, **query):
        return sorted((row["namespace"], row[field]) for row in api.all(path, **query))

    ids = [("blue", "phone"), ("default", "phone"), ("red", "other"), ("red", "phone")]
    assert rows("/clients", "client_id", limit=1) == ids
    assert rows("/clients", "client_id", limit=1, namespace="red") == ids[2:]
    assert rows("/clients", "client_id", namespace="default") == [("default", "phone")]
    modes = [(name, f"of {name}") for name in sorted(ALL)]
    assert rows("/retained", "payload", limit=1) == modes
    assert rows("/retained", "payload", limit=1, filter="site/+") == modes
    assert rows("/retained", "payload", namespace="blue") == [("blue", "of blue")]
    assert rows("/groups", "share", limit=1) == [(name, "g") for name in sorted(ALL)]
    assert rows("/groups", "share", namespace="red") == [("red", "g")]

    assert api("GET", "/clients/phone")["namespace"] == "default"
    for name in ALL:
        assert api("GET", "/clients/phone", namespace=name)["namespace"] == name
        message = api("GET", "/retained/message", topic="site/mode", namespace=name)
        assert message["payload"] == f"of {name}"
        receivers = api.all("/topics/receivers", topic="site/x", namespace=name)
        assert [row["client_id"] for row in receivers] == ["phone"]
        members = api.all("/groups/members", share="g", filter="jobs", namespace=name)
        assert [row["client_id"] for row in members] == ["phone"]
        filters = api.all("/clients/phone/subscriptions", namespace=name)
        assert sorted(row["filter"] for row in filters) == ["jobs", "site/#"]
    assert api.all("/clients/phone/namespaces", limit=1) == [
        {"namespace": name, "connected": True} for name in ALL
    ]
    assert api.all("/clients/nobody/namespaces") == []

    problem = api("GET", "/clients/other", status=404)
    assert "'default'" in problem["detail"] and "exists in: red" in problem["fix"]
    assert "namespace" in problem["place"]
    api("GET", "/clients/other/subscriptions", namespace="blue", status=404)
    for method, path in [("GET", "/clients"), ("GET", "/retained"), ("DELETE", "/clients/phone")]:
        problem = api(method, path, namespace="green", status=404)
        assert "'green'" in problem["detail"] and problem["place"] == "query parameter namespace"
    api("GET", "/clients?namespace=", status=400)


def test_an_operator_changes_one_namespace_only(start, join):  # noqa: F811
    broker = start(CONFIG)
    api = Api(broker)
    phones = everywhere(broker, join, "phone", keeps=True)
    for phone in phones.values():
        phone.subscribe("site/#")
        phone.paho.reconnect_delay_set(3600, 3600)
    api("POST", "/publish", {"topic": "site/a", "payload": "1", "qos": 1}, namespace="red")
    api("PUT", "/retained/message", {"payload": "2"}, topic="site/b", namespace="red")
    assert [phones["red"].next()[1] for _ in range(2)] == ["1", "2"]
    batch = {"messages": [{"topic": "site/c", "payload": "3"}]}
    api("POST", "/publish/batch", batch, namespace="blue")
    assert phones["blue"].next()[1] == "3"
    assert [row["namespace"] for row in api.all("/retained")] == ["red"]
    api("DELETE", "/retained/message", topic="site/b", status=204)
    assert len(api.all("/retained")) == 1, "another namespace"
    api("DELETE", "/retained/message", topic="site/b", namespace="red", status=204)
    assert api.all("/retained") == []
    api("POST", "/publish", {"topic": "site/d", "payload": "4"})
    cleared, published = phones["default"].next(), phones["default"].next()
    assert (cleared[:2], published[:2]) == (("site/b", ""), ("site/d", "4"))

    api("POST", "/clients/phone/disconnect?namespace=blue", status=204)
    assert phones["blue"].over.wait(20)
    api("DELETE", "/clients/phone?namespace=red", status=204)
    assert phones["red"].over.wait(20)
    assert [row["namespace"] for row in api.all("/clients", namespace="default")] == ["default"]
    assert not phones["default"].over.is_set()
    for asked in [("DELETE", "red"), ("POST", "blue"), ("POST", "default")]:
        broker.wait_for_log(
            lambda event, asked=asked: event["message"] == "audit"
            and (event["method"], event["namespace"]) == asked
        )


def test_ctl_shows_all_namespaces_and_asks_for_one_where_it_has_to(start, join):  # noqa: F811
    broker = start(CONFIG)
    join(broker, "alone", "red:anna")
    everywhere(broker, join, "phone")
    lines = [line.split()[:2] for line in ctl(broker, "clients", "list").splitlines()]
    assert lines[0] == ["NAMESPACE", "CLIENT"]
    expected = [[name, "phone"] for name in ALL] + [["red", "alone"]]
    assert sorted(lines[1:]) == sorted(expected)
    only = ctl(broker, "clients", "list", "--namespace", "default").splitlines()
    assert only[0].split()[0] == "CLIENT" and len(only) == 2
    told = ctl(broker, "clients", "kick", "phone", code=1)
    assert "--namespace" in told and "default, red, blue" in told
    assert "red" in ctl(broker, "clients", "kick", "alone")
    assert "'nobody' is not connected" in ctl(broker, "clients", "kick", "nobody", code=5)
    assert "'green'" in ctl(broker, "clients", "kick", "phone", "--namespace", "green", code=5)
    shown = ctl(broker, "clients", "show", "phone", "--namespace", "blue")
    assert ["namespace", "blue"] in [line.split() for line in shown.splitlines()]
    ctl(broker, "publish", "site/a", "-m", "x", "--retain", "--namespace", "blue")
    assert "no retained message" in ctl(broker, "retained", "get", "site/a", code=5)
    (row,) = json.loads(ctl(broker, "--json", "retained", "list"))
    assert (row["namespace"], row["payload"]) == ("blue", "x")
    ctl(broker, "retained", "clear", "site/a", "--namespace", "blue")
    assert ctl(broker, "retained", "list").splitlines()[1:] == []
    ctl(broker, "subs", "phone", "--namespace", "red")
    ctl(broker, "clients", "purge", "phone", code=1)
    ctl(broker, "clients", "purge", "phone", "--namespace", "red")


BANNED = "Banned"


def banned(api, **query):
    return [(row["kind"], row["who"], row["namespace"]) for row in api.all("/bans", **query)]


def test_a_ban_of_a_name_holds_in_its_namespace(start, users, enter):
    broker = start(PROVED, users)
    api = Api(broker)
    places = {"default": None, "red": "red:anna", "blue": "blue:anna"}
    phones = {name: enter(broker, "phone", user) for name, user in places.items()}
    problem = api("POST", "/bans", {"kind": "client", "who": "phone"}, status=400)
    assert "several namespaces" in problem["detail"] and "*" in problem["fix"]
    new = {"kind": "client", "who": "phone", "namespace": "red"}
    assert api("POST", "/bans", new)["namespace"] == "red"
    assert phones["red"].over.wait(20)
    assert not phones["blue"].over.is_set() and not phones["default"].over.is_set()
    assert enter(broker, "phone", "red:bea").reason == BANNED
    assert enter(broker, "other", "red:bea").reason == "Success"
    api("POST", "/bans", {"kind": "user", "who": "bea", "namespace": "blue"})
    assert enter(broker, "b", "blue:bea").reason == BANNED
    assert enter(broker, "b", "red:bea").reason == "Success"
    api("POST", "/bans", {"kind": "client", "who": "x", "namespace": "green"}, status=404)
    address = {"kind": "address", "who": "192.0.2.1"}
    api("POST", "/bans", {**address, "namespace": "red"}, status=400)
    assert api("POST", "/bans", address)["namespace"] == "*"
    api("POST", "/clients/phone/disconnect?ban_secs=60", status=400)
    api("POST", "/clients/phone/disconnect?ban_secs=60&namespace=default", status=204)
    assert phones["default"].over.wait(20)

    broker.restart()
    api = Api(broker)
    assert enter(broker, "phone", "red:bea").reason == BANNED
    assert enter(broker, "phone", "blue:anna").reason == "Success"
    listed = [
        ("client", "phone", "default"), ("client", "phone", "red"),
        ("user", "bea", "blue"), ("address", "192.0.2.1", "*"),
    ]  # fmt: skip
    assert banned(api) == listed
    assert banned(api, namespace="red") == [listed[1], listed[3]]
    problem = api("DELETE", "/bans", kind="client", who="phone", status=400)
    assert "default, red" in problem["detail"]
    api("DELETE", "/bans", kind="client", who="phone", namespace="blue", status=404)
    api("DELETE", "/bans", kind="client", who="phone", namespace="red", status=204)
    api("DELETE", "/bans", kind="client", who="phone", status=204)
    assert enter(broker, "phone", "red:bea").reason == "Success"
    is_told = lambda event: event["message"] == "ban removed"  # noqa: E731
    broker.wait_for_log(lambda event: is_told(event) and event.get("namespace", "default") == "default")
    assert [event.get("namespace", "default") for event in broker.log if is_told(event)] == ["red", "default"]


def test_ctl_asks_where_a_name_is_banned(start, users, enter):
    broker = start(PROVED, users)
    for command in (("ban", "add", "client", "c"), ("clients", "kick", "c", "--ban", "1h")):
        told = ctl(broker, *command, code=1)
        assert "--namespace" in told and "default, blue, red" in told
    ctl(broker, "ban", "add", "user", "anna", "--all-namespaces")
    ctl(broker, "ban", "add", "client", "c", "--namespace", "red")
    ctl(broker, "ban", "add", "address", "192.0.2.0/24")
    ctl(broker, "ban", "add", "client", "c", "--namespace", "red", "--all-namespaces", code=2)
    for user in ("red:anna", "blue:anna"):
        assert enter(broker, "d", user).reason == BANNED
    assert enter(broker, "c", "blue:bea").reason == "Success"
    assert enter(broker, "c", "red:bea").reason == BANNED
    rows = [line.split()[:3] for line in ctl(broker, "ban", "list").splitlines()]
    assert rows[0] == ["KIND", "WHO", "NAMESPACE"]
    assert rows[1:] == [["client", "c", "red"], ["user", "anna", "*"], ["address", "192.0.2.0/24", "*"]]
    told = ctl(broker, "clients", "kick", "c", "--ban", "1h")
    assert "blue" in told
    ctl(broker, "ban", "remove", "client", "c", code=1)
    for place in ("red", "blue"):
        ctl(broker, "ban", "remove", "client", "c", "--namespace", place)
    ctl(broker, "ban", "remove", "user", "anna")
    assert enter(broker, "c", "red:anna").reason == "Success"


def test_bans_of_before_namespaces_hold_in_all(start, users, enter):
    bans = "client old\nclient@red c\nuser@blue eve until 2030-01-01T00:00:00Z\n"
    broker = start(PROVED + 'ban_file = "{dir}/bans"\n', {**users, "bans": bans})
    for user in (None, "red:anna", "blue:anna"):
        assert enter(broker, "old", user).reason == BANNED
    assert enter(broker, "c", "red:anna").reason == BANNED
    assert enter(broker, "c", "blue:eve").reason == BANNED
    phone = enter(broker, "c", "blue:anna")
    assert phone.reason == "Success" and enter(broker, "d", "red:eve").reason == "Success"
    (broker.directory / "bans").write_text("client@blue c\n")
    broker.reload()
    assert phone.over.wait(20)
    assert enter(broker, "c", "red:anna").reason == "Success"


def test_events_say_in_which_namespace(start, join):  # noqa: F811
    broker = start(CONFIG)
    everything, of_red = Stream(Api(broker)), Stream(Api(broker), "?namespace=red")
    for user in (None, "blue:anna", "red:anna"):
        join(broker, "phone", user)
    told = [everything.until("session.connected")["namespace"] for _ in range(3)]
    assert told == ["default", "blue", "red"]
    first = of_red.next()
    assert (first["type"], first["data"]["namespace"]) == ("quelea.session.created", "red")
    assert first["subject"] == "namespaces/red/clients/phone"
    connected = broker.wait_for_log(
        lambda event: event["message"] == "client connected" and event.get("namespace") == "blue"
    )
    assert connected["client_id"] == "phone"
    Api(broker)("GET", "/events?namespace=green", status=404)


def test_a_refused_log_in_is_an_event_with_who_refused_it_and_why(start, users, enter, join):  # noqa: F811
    broker = start(PROVED.replace("namespace_from", 'name = "front"\nnamespace_from'), users)
    api = Api(broker)
    stream = Stream(api, "?type=quelea.client.")
    assert join(broker, "phone", "red:anna", "wrong").reason != "Success"
    told = stream.until("client.refused")
    assert told.pop("address").startswith("127.0.0.1:") and told.pop("detail")
    assert told == {
        "namespace": None, "client_id": "phone", "username": "red:anna", "listener": "front",
        "provider": "file", "reason": "not_authorized", "reason_code": 0x87,
    }  # fmt: skip
    api("POST", "/bans", {"kind": "client", "who": "phone", "namespace": "red"})
    assert enter(broker, "phone", "red:anna").reason == BANNED
    told = stream.until("client.refused")
    assert (told["namespace"], told["provider"], told["reason"]) == ("red", None, "banned")
    assert told["reason_code"] == 0x8A
