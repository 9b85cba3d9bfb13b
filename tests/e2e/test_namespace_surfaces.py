"""Namespaces where operators look: the API, `quelea ctl`, bans, events."""

import json

from broker import eventually
from test_api import Api, ctl
from test_namespaces import BY_USERNAME, join  # noqa: F401 (a fixture)

CONFIG = BY_USERNAME + '[api]\nlisten = "http"\n'
ALL = ["default", "red", "blue"]


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
    told = {
        (event["method"], event["namespace"]) for event in broker.log if event["message"] == "audit"
    }
    assert {("DELETE", "red"), ("POST", "blue"), ("POST", "default")} <= told


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
    assert "there is no connected client" in ctl(broker, "clients", "kick", "nobody", code=5)
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
