"""Streams, targets and rules that the API defines, beside those of the operator's file."""

import concurrent.futures
import json
import stat
import subprocess

import pytest

from broker import PLAIN, QUELEA, Broker, eventually
from receiver import Receiver
from test_api import Api, basic
from test_routing import numbered, publish_all, rules
from test_routing_api import MANAGED, ctl, receiver, users, wait_for  # noqa: F401
from test_routing_namespaces import of_red
from wire import PUBACK, Peer, connect, publish

STREAM = {"filters": ["bikes/#"]}
RULE = {"stream": "bikes", "filter": "bikes/#", "form": "raw", "target": "lake", "order": "topic",
        "retry_secs": [1]}
OF_FILE = {"stream": "cars", "filter": "cars/#", "form": "raw", "target": "hook"}


@pytest.fixture
def lake():
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture
def routing(users, receiver):
    """Starts brokers with the rule `all` of a file, and gives them with their API."""
    brokers = []

    def start(text=None, config=MANAGED):
        text = rules(receiver.url, rule='stream = "cars"') if text is None else text
        brokers.append(Broker(config, files={"rules.toml": text, "users": users}))
        return brokers[-1], Api(brokers[-1])

    yield start
    for broker in brokers:
        broker.stop()


def put(api, kind, name, keys, status=200):
    return api("PUT", f"/{kind}/definition", keys, status=status, name=name)


def delete(api, kind, name, status=204, **query):
    return api("DELETE", f"/{kind}/definition", status=status, name=name, **query)


def target(receiver, **more):
    return {"type": "http", "url": receiver.url, **more}


def define_all(api, lake):
    put(api, "stream", "bikes", STREAM)
    put(api, "target", "lake", target(lake))
    put(api, "rule", "archive", RULE)


def stored(broker):
    return (broker.data / "stream-definitions").read_text()


def names(api):
    return [f"{own['source']} {own['kind']} {own['name']}" for own in api.all("/definitions")]


FILE_NAMES = ["file rule all", "file stream cars", "file target hook"]
ALL_NAMES = ["api rule archive", "file rule all", "api stream bikes", "file stream cars",
             "file target hook", "api target lake"]


def test_what_the_api_defines_delivers_and_outlives_a_crash(routing, receiver, lake):
    broker, api = routing()
    assert sorted(names(api)) == FILE_NAMES
    define_all(api, lake)
    publish_all(broker, numbered(0, 20), "bikes/1")
    eventually(lambda: lake.payloads() == numbered(0, 20))
    wait_for(api, {"state": "idle", "delivered": 20}, "archive")
    broker.restart("kill")
    api = Api(broker)
    assert sorted(names(api)) == sorted(ALL_NAMES)
    publish_all(broker, ["after"], "bikes/1")
    publish_all(broker, ["of the file"])
    eventually(lambda: "after" in lake.payloads())
    eventually(lambda: receiver.payloads() == ["of the file"])
    # It is the same stream.
    wait_for(api, {"state": "idle", "stored": 21}, "archive")
    # A person can read it, and nobody else's program.
    assert '[[streams]]\nname = "bikes"\nfilters = ["bikes/#"]' in stored(broker)
    assert stat.S_IMODE((broker.data / "stream-definitions").stat().st_mode) == 0o600


def test_what_is_published_after_the_answer_is_stored(routing):
    broker, api = routing()
    peer = Peer(broker.port())
    peer.send(connect("van-1"))
    peer.recv()
    names = [f"vans-{number}" for number in range(30)]
    for number, name in enumerate(names, 1):
        put(api, "stream", name, {"filters": [f"{name}/#"]})
        # By a connection that a worker reads already.
        peer.send(publish(f"{name}/1", b"1", qos=1, packet_id=number))
        assert peer.recv()[0] == PUBACK
    # What is shown follows within a second.
    def stored():
        return {row["name"]: row["stored_messages"] for row in api.all("/streams")}
    eventually(lambda: {name: stored()[name] for name in names} == dict.fromkeys(names, 1))


def test_ctl_puts_shows_and_deletes_definitions(routing, lake, tmp_path):
    broker, api = routing()
    (tmp_path / "stream.toml").write_text('[[streams]]\nname = "bikes"\nfilters = ["bikes/#"]\n')
    (tmp_path / "target.toml").write_text(
        f'[[targets]]\nname = "lake"\ntype = "http"\nurl = "{lake.url}"\n'
        '[targets.headers]\nauthorization = "Bearer hunter2"\n')
    (tmp_path / "rule.toml").write_text(
        '[[rules]]\nname = "archive"\nstream = "bikes"\nfilter = "#"\ntarget = "lake"\nform = "raw"\n'
        '[[rules.conditions]]\nkey = "data.n"\noperator = "NumberGreaterThan"\nvalue = 80.5\n')
    for kind in ("stream", "target", "rule"):
        ctl(broker, f"{kind}s", "put", str(tmp_path / f"{kind}.toml"))
    shown = ctl(broker, "rules", "definition", "archive")
    assert shown.startswith("# Defined by the API.\n") and "value = 80.5" in shown
    shown = ctl(broker, "targets", "definition", "lake")
    assert "authorization = { set = true }" in shown and "hunter2" not in shown
    assert "# Defined by the file of rules." in ctl(broker, "streams", "definition", "cars")
    listed = ctl(broker, "targets")
    assert [line.split() for line in listed.splitlines()[1:]] == [["hook", "http", "file"], ["lake", "http", "api"]]
    ctl(broker, "rules", "put", str(tmp_path / "stream.toml"), code=1)
    ctl(broker, "rules", "delete", "none", code=5)
    ctl(broker, "rules", "delete", "all", code=1)
    ctl(broker, "streams", "delete", "bikes", code=1)
    ctl(broker, "streams", "delete", "bikes", "--force")
    ctl(broker, "targets", "delete", "lake")
    assert sorted(names(api)) == FILE_NAMES


def test_secrets_are_sent_and_never_shown(routing, lake):
    broker, api = routing()
    secret = "hunter2hunter2"
    put(api, "stream", "bikes", STREAM)
    headers = {"authorization": f"Bearer {secret}", "x-topic": {"path": "subject"}}
    made = put(api, "target", "lake", target(lake, headers=headers, signing_secret=secret))
    put(api, "rule", "archive", RULE)
    login = {"mechanism": "PLAIN", "username": "ann", "password": secret}
    kafka = {"type": "kafka", "servers": ["127.0.0.1:1"], "tls": True, "sasl": login}
    made = [made, put(api, "target", "kafka", kafka)]
    publish_all(broker, ["1"], "bikes/1")
    eventually(lambda: lake.payloads() == ["1"])
    (sent, _), = lake.got
    sent = {name.lower(): value for name, value in sent.items()}
    assert sent["authorization"] == f"Bearer {secret}" and sent["x-topic"] == "bikes/1"
    assert sent["webhook-signature"].startswith("v1,")
    assert made[0]["definition"]["headers"] == {"authorization": {"set": True}, "x-topic": {"path": "subject"}}
    assert made[1]["definition"]["sasl"] == {**login, "password": {"set": True}}
    # What is shown cannot be put back by mistake.
    problem = put(api, "target", "lake", made[0]["definition"], status=400)
    assert "signing_secret: must be a text" in problem["detail"]
    wrong = put(api, "target", "lake", target(lake, signing_secret=secret, lanes=secret), status=400)
    seen = [made, problem, wrong, api.all("/definitions"), api("GET", "/target/definition", name="lake"),
            api.all("/audit"), api.all("/rules"), broker.log, ctl(broker, "targets", "definition", "kafka")]
    assert secret not in json.dumps(seen)
    assert secret in stored(broker), "the file has it, for its owner only"


def test_the_operators_file_cannot_be_changed_by_the_api(routing, lake):
    broker, api = routing()
    for kind, name, keys in (("stream", "cars", STREAM), ("target", "hook", target(lake)), ("rule", "all", OF_FILE)):
        problem = put(api, kind, name, keys, status=409)
        assert f"the {kind} '{name}' is defined in the file" in problem["detail"]
        assert str(broker.directory / "rules.toml") in problem["detail"]
        assert "is defined in the file" in delete(api, kind, name, status=409)["detail"]
    assert api("GET", "/rule/definition", name="all")["source"] == "file"
    assert sorted(names(api)) == FILE_NAMES and not (broker.data / "stream-definitions").exists()


@pytest.mark.parametrize("kind, keys, detail", [
    ("rule", {**RULE, "stream": "none"}, "rule 'x' of the API: stream: no stream is named 'none'"),
    ("rule", {**RULE, "stream": "cars", "target": "none"}, "target: no target is named 'none'"),
    ("rule", {**OF_FILE, "lanes": 0}, "lanes: must be a number from 1 to 256, got 0"),
    ("rule", {**OF_FILE, "lane": 1}, "lane: unknown key"),
    ("rule", {**OF_FILE, "filter": None}, "filter: must not be null"),
    ("rule", {**OF_FILE, "name": "y"}, 'name: must be "x" or left out'),
    ("rule", {key: value for key, value in OF_FILE.items() if key != "stream"}, "stream: missing"),
    ("rule", {**OF_FILE, "dead_letter": "cars"}, "dead_letter: must not be the rule's own stream"),
    ("stream", {"filters": ["a/#/b"]}, "filters.0: "),
    ("stream", {"namespace": "red"}, "namespace: no namespace is named 'red'"),
    ("target", {"type": "http", "url": "http://a", "networks": ["10.0.0.0/8"]}, "must not have this key"),
    ("target", {"type": "http", "url": "http://a", "headers": {"x": {"file": "/etc/passwd"}}}, "must not have this key"),
    ("target", {"type": "http", "url": "http://a", "tls": {"ca": "/etc/passwd"}}, "must not have this key"),
    ("target", {"type": "http", "url": "ftp://a"}, "url: "),
    ("target", [], "must be JSON of the schema"),
])
def test_what_is_wrong_changes_nothing(routing, kind, keys, detail):
    broker, api = routing()
    problem = put(api, kind, "x", keys, status=400)
    assert detail in problem["detail"], problem
    assert sorted(names(api)) == FILE_NAMES and not (broker.data / "stream-definitions").exists()
    api("GET", f"/{kind}/definition", name="x", status=404)


def test_names_of_definitions_and_roles_are_checked(routing, lake):
    broker, api = routing()
    for name in ("a b", "a" * 65, "../x", "a\nb"):
        assert "name: " in put(api, "stream", name, STREAM, status=400)["detail"]
    for user, status in (("vera", 403), ("otto", 403)):
        other = Api(broker, basic(user, "secret"))
        put(other, "stream", "bikes", STREAM, status=status)
        delete(other, "rule", "all", status=status)
    Api(broker, basic("vera", "secret"))("GET", "/definitions", status=403)
    assert len(Api(broker, basic("otto", "secret")).all("/definitions")) == 3
    api("GET", "/definitions", kind="bike", status=400)
    assert [own["name"] for own in api.all("/definitions", kind="target")] == ["hook"]


def test_a_stream_that_is_used_or_has_messages_is_deleted_by_force_only(routing, lake):
    lake.answers = lambda body: 503
    broker, api = routing()
    define_all(api, lake)
    put(api, "stream", "dead", {})
    put(api, "rule", "careful", {**OF_FILE, "dead_letter": "dead"})
    detail = delete(api, "target", "lake", status=409)["detail"]
    assert detail == "the target 'lake' is in use: rules name it as target: archive"
    detail = delete(api, "stream", "bikes", status=409)["detail"]
    assert detail == "the stream 'bikes' is in use: rules read it: archive"
    # Not even force changes a rule that reads another stream.
    for force in ("false", "true"):
        detail = delete(api, "stream", "dead", status=409, force=force)["detail"]
        assert detail == "the stream 'dead' is in use: rules name it as dead_letter: careful"
    publish_all(broker, ["1", "2"], "bikes/1")
    wait_for(api, {"lag_messages": 2}, "archive")
    delete(api, "rule", "archive")
    detail = delete(api, "stream", "bikes", status=409)["detail"]
    assert detail == "the stream 'bikes' stores 2 messages"
    put(api, "rule", "archive", {**RULE, "start": "beginning"})
    wait_for(api, {"lag_messages": 2}, "archive")
    delete(api, "stream", "bikes", force="true")
    assert "api rule archive" not in names(api) and "api stream bikes" not in names(api)
    # Neither the name nor a restart brings messages back.
    lake.answers = lambda body: 200
    define_all(api, lake)
    put(api, "rule", "archive", {**RULE, "start": "beginning"})
    publish_all(broker, ["3"], "bikes/1")
    eventually(lambda: lake.payloads() == ["3"])
    broker.restart("kill")
    publish_all(broker, ["4"], "bikes/1")
    eventually(lambda: lake.payloads()[-1] == "4")
    assert not {"1", "2"} & set(lake.payloads())


def test_what_a_stream_or_a_rule_is_bound_to_does_not_change(routing, lake):
    red = MANAGED + '\n[[namespaces]]\nname = "red"\n'
    broker, api = routing(config=red)
    define_all(api, lake)
    detail = put(api, "rule", "archive", {**RULE, "stream": "cars"}, status=409)["detail"]
    assert "a rule keeps its stream" in detail
    # Messages of a namespace must not be read in another one.
    detail = put(api, "stream", "bikes", {**STREAM, "namespace": "red"}, status=409)["detail"]
    assert "a stream keeps its namespace" in detail
    path = broker.directory / "rules.toml"
    path.write_text(path.read_text().replace('name = "cars"\n', 'name = "cars"\nnamespace = "red"\n'))
    broker.reload("not reloaded")
    broker.wait_for_log(lambda event: "a stream keeps its namespace" in event.get("error", ""))
    publish_all(broker, ["1"], "bikes/1")
    eventually(lambda: lake.payloads() == ["1"])
    # Other keys change.
    put(api, "rule", "archive", {**RULE, "filter": "bikes/2"})
    publish_all(broker, ["2"], "bikes/1")
    publish_all(broker, ["3"], "bikes/2")
    eventually(lambda: lake.payloads() == ["1", "3"])


def test_a_name_that_the_file_takes_refuses_the_file(routing, receiver, lake):
    broker, api = routing()
    define_all(api, lake)
    path = broker.directory / "rules.toml"
    whole = path.read_text()
    conflict = whole + '\n[[streams]]\nname = "bikes"\nfilters = ["bikes/#"]\n'
    path.write_text(conflict)
    broker.reload("not reloaded")
    expected = "stream 'bikes' of the API: name: 'bikes' is defined in the file of rules"
    broker.wait_for_log(lambda event: expected in event.get("error", ""))
    publish_all(broker, ["1"], "bikes/1")
    eventually(lambda: lake.payloads() == ["1"])
    # So does a file that lacks what the API refers to.
    put(api, "rule", "copies", {**OF_FILE, "target": "lake"})
    path.write_text(whole.replace('"cars"', '"vans"'))
    broker.reload("not reloaded")
    broker.wait_for_log(lambda event: "rule 'copies' of the API: stream: no" in event.get("error", ""))
    # A start refuses it, and changes nothing.
    path.write_text(conflict)
    before = stored(broker)
    broker.terminate()
    broker.wait()
    arguments = ["serve", "-c", str(broker.config), f"--data={broker.data}"]
    checked = subprocess.run([QUELEA, *arguments, "--check-config"], capture_output=True, text=True)
    assert checked.returncode != 0 and expected in checked.stderr, checked
    started = subprocess.run([QUELEA, *arguments], capture_output=True, text=True, timeout=60)
    assert started.returncode != 0 and expected in started.stdout + started.stderr, started
    assert before.splitlines()[1:] == stored(broker).splitlines()[1:]
    path.write_text(whole)
    broker._launch()
    publish_all(broker, ["2"], "bikes/1")
    eventually(lambda: lake.payloads() == ["1", "2"])


def test_calls_and_reloads_at_once_are_each_done_whole(routing, lake):
    broker, api = routing()
    put(api, "target", "lake", target(lake))
    put(api, "stream", "bikes", STREAM)

    def work(number):
        for round in range(5):
            put(api, "stream", f"s{number}", {"filters": [f"s{number}/#"]})
            put(api, "rule", f"r{number}", {**RULE, "stream": f"s{number}", "filter": "#"})
            # All write the same name: one of them is the last.
            put(api, "rule", "archive", {**RULE, "lanes": number + 1})
            if round < 4:
                delete(api, "stream", f"s{number}", force="true")

    def reload():
        for _ in range(10):
            broker.reload("streams and rules reloaded")

    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        done = [pool.submit(work, number) for number in range(6)] + [pool.submit(reload)]
        for one in done:
            one.result()
    expected = sorted(FILE_NAMES + ["api rule archive", "api stream bikes", "api target lake"]
                      + [f"api {kind} {kind[0]}{number}" for kind in ("rule", "stream") for number in range(6)])
    assert sorted(names(api)) == expected
    before = api.all("/definitions")
    publish_all(broker, ["1"], "s3/x")
    eventually(lambda: lake.payloads() == ["1"])
    numbers = [line.split()[1] for line in (broker.data / "stream-numbers").read_text().splitlines()
               if line.startswith(("stream ", "consumer "))]
    broker.restart("kill")
    api = Api(broker)
    assert api.all("/definitions") == before
    publish_all(broker, ["2"], "s3/x")
    eventually(lambda: lake.payloads()[-1] == "2")
    # Deleted ones have used up their numbers.
    assert max(map(int, numbers)) > 25


def test_a_kill_between_two_steps_loses_no_answered_change(routing, lake):
    broker, api = routing()
    put(api, "target", "lake", target(lake))
    expected = set(names(api))
    for round in range(5):
        done, under_way = set(expected), []

        def change():
            for number in range(1_000):
                name = f"n{round}-{number}"
                added = {f"api stream {name}", f"api rule {name}"}
                steps = [({f"api stream {name}"}, lambda: put(api, "stream", name, STREAM)),
                         (added, lambda: put(api, "rule", name, {**RULE, "stream": name}))]
                if number % 3:
                    steps.append((set(), lambda: delete(api, "stream", name, force="true")))
                before = set(done)
                for has, step in steps:
                    under_way[:] = [before | has]
                    step()
                    done.clear()
                    done.update(before | has)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            ended = pool.submit(change)
            eventually(lambda: len(done) >= len(expected) + 4 + round or ended.done())
            broker.kill()
            with pytest.raises(OSError):
                ended.result()
        broker._launch()
        api = Api(broker)
        found = set(names(api))
        assert found in (done, under_way[0])
        assert len({own["name"] for own in api.all("/rules")}) == sum("rule" in name for name in found)
        expected = found
    name = next(own.split()[-1] for own in expected if own.startswith("api rule"))
    publish_all(broker, ["1"], "bikes/1")
    wait_for(api, {"delivered": 1}, name)


def test_a_disk_that_refuses_a_definition_changes_nothing(routing, receiver, lake):
    lake.answers = lambda body: 503
    broker, api = routing()
    define_all(api, lake)
    publish_all(broker, ["1"], "bikes/1")
    wait_for(api, {"lag_messages": 1}, "archive")
    before, shown = stored(broker), api.all("/definitions")
    # The new content cannot be written, as on a full disk.
    blocked = broker.data / "stream-definitions.new"
    blocked.mkdir()
    for call in (lambda: put(api, "stream", "vans", {"filters": ["vans/#"]}, status=507),
                 lambda: put(api, "rule", "archive", {**RULE, "filter": "none"}, status=507),
                 lambda: delete(api, "rule", "archive", status=507),
                 lambda: delete(api, "stream", "bikes", status=507, force="true")):
        assert "cannot write to the data directory" in call()["detail"]
        assert stored(broker) == before and api.all("/definitions") == shown
    # A crash then: what was to be deleted is as it was, with its messages and its position.
    broker.kill()
    blocked.rmdir()
    broker._launch()
    api = Api(broker)
    assert api.all("/definitions") == shown
    assert wait_for(api, {"lag_messages": 1}, "archive")["run"] == 1
    lake.answers = lambda body: 200
    eventually(lambda: lake.payloads() == ["1"])
    put(api, "stream", "vans", {"filters": ["vans/#"]})
    put(api, "rule", "vans", {**RULE, "stream": "vans", "filter": "#"})
    publish_all(broker, ["2"], "vans/1")
    eventually(lambda: lake.payloads() == ["1", "2"])
    # Numbers of what was deleted cannot be forgotten: a start does so.
    (broker.data / "stream-numbers.new").mkdir()
    delete(api, "stream", "vans", force="true")
    broker.wait_for_log(lambda event: "numbers of removed streams" in event["message"])
    (broker.data / "stream-numbers.new").rmdir()
    broker.restart("kill")
    assert sorted(names(Api(broker))) == sorted(ALL_NAMES)
    text = (broker.data / "stream-numbers").read_text()
    assert "vans" not in text and "bikes" in text


def test_a_start_without_the_definitions_deletes_nothing(routing, lake):
    broker, api = routing()
    define_all(api, lake)
    broker.terminate()
    broker.wait()
    path = broker.data / "stream-definitions"
    content = path.read_bytes()
    path.unlink()
    arguments = ["serve", f"--config={broker.config}", f"--data={broker.data}"]
    started = subprocess.run([QUELEA, *arguments], capture_output=True, text=True, timeout=60)
    assert started.returncode != 0, started
    assert "stream-definitions: " in started.stderr and "missing" in started.stderr, started
    # The start that was refused has changed nothing.
    path.write_bytes(content)
    broker._launch()
    assert sorted(names(Api(broker))) == sorted(ALL_NAMES)


def test_a_backup_has_the_definitions(routing, lake, tmp_path):
    broker, api = routing()
    define_all(api, lake)
    publish_all(broker, ["1"], "bikes/1")
    eventually(lambda: lake.payloads() == ["1"])
    copy = tmp_path / "copy"
    subprocess.run([QUELEA, "backup", str(broker.data), str(copy)], check=True, capture_output=True)
    delete(api, "stream", "bikes", force="true")
    files = {name: (broker.directory / name).read_text() for name in ("rules.toml", "users")}
    broker.stop()
    restored = Broker(MANAGED, files=files, data=copy)
    try:
        assert sorted(names(Api(restored))) == sorted(ALL_NAMES)
        publish_all(restored, ["2"], "bikes/1")
        eventually(lambda: lake.payloads()[-1] == "2")
    finally:
        restored.stop()


def test_a_deleted_namespace_takes_its_definitions_along(routing, lake):
    red = MANAGED + '\n[[namespaces]]\nname = "red"\n'
    broker, api = routing(config=red)
    put(api, "target", "lake", target(lake))
    put(api, "stream", "bikes", {**STREAM, "namespace": "red"})
    put(api, "rule", "archive", RULE)
    broker.config.write_text(of_red(broker.config.read_text(), 'state = "deleted"'))
    broker.reload()
    broker.wait_for_log(lambda event: event["message"] == "namespace deleted")
    eventually(lambda: sorted(names(api)) == sorted(FILE_NAMES + ["api target lake"]))
    assert "bikes" not in stored(broker)
    broker.restart("kill")
    assert sorted(names(Api(broker))) == sorted(FILE_NAMES + ["api target lake"])


def test_a_broker_without_rules_says_so(start):
    broker = start(PLAIN + """
[api]
listen = "http"
""")
    api = Api(broker)
    assert api.all("/definitions") == []
    problem = put(api, "stream", "bikes", STREAM, status=409)
    assert "set routing.file" in problem["fix"]
    delete(api, "stream", "bikes", status=409)
    api("GET", "/stream/definition", name="bikes", status=404)
