"""Bans by the management API and `quelea ctl`: in force at once, on the disk, taken back."""

import json
import socket
import threading

from broker import eventually
from test_api import Api, basic, client, ctl, ended, managed, quoted  # noqa: F401 (fixtures)
from wire import Peer

BANNED = 0x8A

TWO_WORKERS = """
[server]
workers = 2
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[api]
listen = "http"
"""

BY_HAND = """
[[listeners]]
url = "tcp://127.0.0.1:0"
[auth]
password_file = "{dir}/users"
ban_file = "{dir}/bans"
[api]
listen = "127.0.0.1:0"
password_file = "{dir}/users"
operators = ["bruno"]
"""


def reason(broker, **options):
    with Peer(broker.port()) as peer:
        return peer.connect(**options)[1]


def bans(api):
    return [(row["kind"], row["who"]) for row in api.all("/bans")]


def test_a_ban_ends_connections_before_it_is_answered_and_survives_kill_9(start):
    broker = start(TWO_WORKERS)
    api = Api(broker)
    peers = {f"c{number}": Peer(broker.port()).accepted(client_id=f"c{number}") for number in range(8)}
    told = api("POST", "/bans", {"kind": "client", "who": "c3"})
    expected = {"kind": "client", "who": "c3", "namespace": "default"}
    assert told == {**expected, "until": None, "by_hand": False}
    peers.pop("c3").expect_disconnect(0x98)
    assert [row["client_id"] for row in api.all("/clients", client_id="c3")] == []
    assert reason(broker, client_id="c3") == BANNED
    for peer in peers.values():
        peer.ping()
    broker.restart()
    api = Api(broker)
    assert bans(api) == [("client", "c3")]
    assert reason(broker, client_id="c3") == BANNED
    peers = [Peer(broker.port()).accepted(client_id=name) for name in peers]
    api("POST", "/bans", {"kind": "address", "who": "127.0.0.0/8", "for_secs": 3600})
    for peer in peers:
        peer.expect_disconnect(0x98)
    with Peer(broker.port()) as peer:
        peer.expect_end()
    (network,) = api.all("/bans", kind="address")
    assert network["until"].endswith("Z")
    api("DELETE", "/bans", status=204, kind="address", who="127.0.0.0/8")
    api("DELETE", "/bans", status=204, kind="client", who="c3")
    api("DELETE", "/bans", status=404, kind="client", who="c3")
    assert reason(broker, client_id="c3") == 0
    assert bans(api) == []


def test_a_ban_ends_by_itself(managed):  # noqa: F811
    broker, api = managed
    api("POST", "/bans", {"kind": "client", "who": "c", "for_secs": 1})
    eventually(lambda: reason(broker, client_id="c") == 0, "the end of the ban")
    assert bans(api) == []


def test_a_client_is_sent_away_for_a_while(managed, client):  # noqa: F811
    broker, api = managed
    name = '" until 7 #'
    sent_away = client(name)
    api("POST", f"/clients/{quoted(name)}/disconnect?ban_secs=600", status=204)
    assert ended(sent_away) == 0x98
    assert reason(broker, client_id=name) == BANNED
    broker.restart()
    assert reason(broker, client_id=name) == BANNED
    assert bans(Api(broker)) == [("client", name)]
    Api(broker)("POST", "/clients/nobody/disconnect?ban_secs=1", status=204)


def test_bans_by_hand_and_by_the_api_stand_beside_each_other(start, passwords):
    files = {"users": passwords, "bans": "# by hand\nclient old\nuser eve until 17\n"}
    broker = start(BY_HAND, files)
    anna = {"user": "anna", "password": "secret"}
    operator = Api(broker, basic("bruno", "geheim"), nth=1)
    viewer = Api(broker, basic("anna", "secret"), nth=1)
    viewer("POST", "/bans", {"kind": "user", "who": "anna"}, status=403)
    peer = Peer(broker.port()).accepted(client_id="c1", **anna)
    operator("POST", "/bans", {"kind": "user", "who": "anna"})
    peer.expect_disconnect(0x98)
    assert reason(broker, client_id="c1", **anna) == BANNED
    assert viewer.all("/bans", limit=1) == [
        {"kind": "user", "who": "anna", "namespace": "default", "until": None, "by_hand": False},
        {"kind": "client", "who": "old", "namespace": "*", "until": None, "by_hand": True},
    ]
    problem = operator("DELETE", "/bans", status=409, kind="client", who="old")
    assert str(broker.directory / "bans") in problem["detail"]
    # What is edited by hand stays as it was; what the API has done stays beside it.
    assert (broker.directory / "bans").read_text() == files["bans"]
    (broker.directory / "bans").write_text("client young\n")
    broker.reload()
    eventually(lambda: ("client", "young") in bans(viewer), "the new file")
    assert bans(viewer) == [("user", "anna"), ("client", "young")]
    made = broker.wait_for_log(lambda event: event["message"] == "ban added")
    assert (made["by"], made["who"]) == ("bruno", "anna")


def test_a_ban_that_cannot_be_written_is_refused_and_not_in_force(managed):  # noqa: F811
    broker, api = managed
    (broker.data / "bans.new").mkdir()
    problem = api("POST", "/bans", {"kind": "client", "who": "c"}, status=507)
    assert str(broker.data / "bans") in problem["detail"]
    assert reason(broker, client_id="c") == 0
    (broker.data / "bans.new").rmdir()
    api("POST", "/bans", {"kind": "client", "who": "c"})
    assert reason(broker, client_id="c") == BANNED


def test_administrators_at_once_lose_nothing_and_who_goes_away_is_noted(managed):  # noqa: F811
    broker, api = managed

    def ban(first):
        for number in range(first, first + 10):
            api("POST", "/bans", {"kind": "client", "who": f"c{number:03}"})

    threads = [threading.Thread(target=ban, args=(first,)) for first in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    # Somebody asks for one, and does not wait for the answer.
    body = json.dumps({"kind": "client", "who": "gone"})
    request = (
        f"POST /api/v1/bans HTTP/1.1\r\nHost: localhost\r\nAuthorization: {api.authorization}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    leaver = socket.create_connection(("127.0.0.1", broker.port("http")))
    leaver.sendall(request.encode())
    leaver.shutdown(socket.SHUT_WR)
    for thread in threads:
        thread.join()
    wanted = [("client", f"c{number:03}") for number in range(40)] + [("client", "gone")]
    eventually(lambda: bans(api) == wanted, "all bans")
    leaver.close()
    broker.wait_for_log(lambda event: event["message"] == "ban added" and event["who"] == "gone")
    broker.restart()
    assert bans(Api(broker)) == wanted


BAD = [
    {"kind": "clients", "who": "c"},
    {"kind": "client", "who": ""},
    {"kind": "address", "who": "10.0.0.0/33"},
    {"kind": "client", "who": "c", "for_secs": 0},
    {"kind": "client", "who": "c", "until": "yesterday"},
    {"kind": "client", "who": "c", "until": "2001-01-01T00:00:00Z"},
    {"kind": "client", "who": "c", "for_secs": 9, "until": "2100-01-01T00:00:00Z"},
    {"kind": "client", "who": "c", "since": 1},
    {"kind": "client", "who": "x" * 70_000},
]


def test_bad_bans_are_told_what_is_wrong(managed):  # noqa: F811
    _, api = managed
    for body in BAD:
        assert api("POST", "/bans", body, status=400)["place"]
    api("DELETE", "/bans", status=400, kind="x", who="y")
    api("DELETE", "/bans", status=400, kind="client")
    api("GET", "/bans", status=400, cursor="7.x")
    assert bans(api) == []


def test_ctl_bans(managed, client):  # noqa: F811
    broker, api = managed
    one = client("one")
    ctl(broker, "clients", "kick", "one", "--ban", "10m")
    assert ended(one) == 0x98
    ctl(broker, "ban", "add", "address", "192.0.2.0/24", "--for", "12h")
    lines = ctl(broker, "ban", "list").splitlines()
    assert lines[0].split() == ["KIND", "WHO", "NAMESPACE", "UNTIL", "BY", "HAND"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["client", "one"], ["address", "192.0.2.0/24"]
    ]
    ctl(broker, "ban", "remove", "client", "one")
    assert reason(broker, client_id="one") == 0
    ctl(broker, "ban", "remove", "client", "one", code=5)
    ctl(broker, "ban", "add", "address", "x", code=1)
    ctl(broker, "ban", "add", "client", "x", "--for", "never", code=2)
