"""Running the broker: readiness, metrics, $SYS, logs, shutdown, configuration, command line."""

import json
import os
import re
import signal
import socket
import subprocess

import pytest

from broker import PATIENCE_SECS, PLAIN, QUELEA, eventually
from wire import Peer, fresh, publish


def run(*arguments, **options):
    options = {"capture_output": True, "text": True, "timeout": PATIENCE_SECS, **options}
    return subprocess.run([QUELEA, *map(str, arguments)], **options)


def test_health_and_readiness(plain):
    assert plain.get("/healthz")[0] == 200
    assert plain.get("/readyz")[0] == 200
    assert plain.get("/nothing")[0] == 404


def test_metrics_are_prometheus_text(plain):
    status, body = plain.get("/metrics")
    assert status == 200
    sample = re.compile(r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^}]*\})? -?[0-9.e+-]+(Inf|NaN)?$')
    names = set()
    for line in body.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert kind in ("counter", "gauge", "histogram"), line
            assert name not in names, f"{name} twice"
            names.add(name)
        elif line and not line.startswith("#"):
            assert sample.match(line), line
    assert any(name.startswith("quelea_") for name in names)


def test_metrics_count_connections_and_messages(start):
    broker = start()

    def connected():
        found = broker.metrics().items()
        return sum(value for name, value in found if name.split("{")[0] == "quelea_connections")

    assert connected() == 0
    with Peer(broker.port()) as peer:
        peer.accepted().subscribed("a")
        eventually(lambda: connected() == 1, "one connection in the metrics")
        before = sum(broker.metrics().values())
        peer.send(publish("a", "x"))
        peer.message()
        eventually(lambda: sum(broker.metrics().values()) > before, "a count of the message")
    eventually(lambda: connected() == 0, "no connection in the metrics")


def test_sys_topics(start):
    broker = start(PLAIN + "[sys]\ninterval_secs = 1\n")
    wanted = {
        "$SYS/broker/version", "$SYS/broker/uptime", "$SYS/broker/clients/connected",
        "$SYS/broker/clients/total", "$SYS/broker/messages/received",
        "$SYS/broker/publish/messages/received", "$SYS/broker/publish/messages/sent",
        "$SYS/broker/bytes/received", "$SYS/broker/bytes/sent", "$SYS/broker/subscriptions/count",
        "$SYS/broker/retained messages/count",
    }
    with Peer(broker.port()) as peer:
        peer.accepted().subscribed("$SYS/#")
        found = {}
        while not wanted <= found.keys():
            topic, payload, _, _ = peer.message()
            found[topic] = payload.decode()
    assert found["$SYS/broker/version"].startswith("quelea")
    assert int(found["$SYS/broker/clients/connected"]) <= 1


def test_user_signals_are_ignored_with_a_line(start):
    broker = start()
    with Peer(broker.port()) as peer:
        peer.accepted().subscribed("a")
        for name in ("SIGUSR1", "SIGUSR2"):
            broker.process.send_signal(getattr(signal, name))
            broker.wait_for_log(lambda event, name=name: event.get("signal") == name)
        peer.send(publish("a", "x"))
        assert peer.message()[1] == b"x"
    broker.terminate()
    assert broker.wait() == 0


def test_clients_may_not_publish_to_sys(start):
    broker = start()
    with Peer(broker.port()) as peer, Peer(broker.port()) as watcher:
        watcher.accepted().subscribed("$SYS/mine")
        peer.accepted().send(publish("$SYS/mine", "x", qos=1))
        assert peer.expect(0x40)[2] >= 0x80


def test_log_tells_client_address_and_clause_of_a_violation(plain):
    name = fresh("c").replace("/", "-")
    with Peer(plain.port()) as peer:
        address = "%s:%d" % peer.stream.getsockname()
        peer.accepted(client_id=name)
        peer.send(b"\x36\x05\x00\x01a\x00\x01")
        peer.expect_disconnect(0x81)
    event = plain.wait_for_log(lambda event: name in str(event) and "MQTT-" in str(event))
    assert address in str(event) and "MQTT-3.3.1-4" in str(event)


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
def test_graceful_shutdown_tells_the_clients(start, how):
    broker = start()
    with Peer(broker.port()) as newer, Peer(broker.port(), 4) as older:
        newer.accepted()
        older.accepted(client_id="old")
        broker.process.send_signal(15 if how == "terminate" else 2)
        newer.expect_disconnect(0x8B)
        older.expect_end()
    assert broker.wait() == 0
    assert "panic" not in broker.log_text()


def test_shutdown_sends_what_is_queued_in_sockets(start):
    broker = start()
    with Peer(broker.port()) as reader, Peer(broker.port()) as sender:
        reader.accepted().subscribed("a")
        sender.accepted()
        for number in range(200):
            sender.send(publish("a", str(number), qos=1, packet_id=number + 1))
            sender.expect(0x40)
        broker.terminate()
        assert [reader.message()[1] for _ in range(200)] == [str(n).encode() for n in range(200)]
        reader.expect_disconnect(0x8B)
    assert broker.wait() == 0


def test_shutdown_does_not_wait_for_a_client_that_does_not_read(start):
    broker = start(PLAIN + "[server]\nshutdown_grace_secs = 1\n")
    with Peer(broker.port()) as stuck, Peer(broker.port()) as sender:
        stuck.accepted().subscribed("a")
        sender.accepted()
        for _ in range(50):
            sender.send(publish("a", "x" * 100_000))
        sender.ping()
        broker.terminate()
        assert broker.wait() == 0


def test_a_port_in_use_is_told_before_anything_is_touched(start):
    broker = start()
    data = broker.directory / "other"
    flags = ["--port", broker.port(), "--http", "off", "--data", data]
    for arguments in (flags, [*flags, "--check-config"]):
        ran = run("serve", *arguments)
        assert ran.returncode == 2
        assert str(broker.port()) in ran.stderr and "another program" in ran.stderr
    assert not data.exists()


def test_the_check_of_a_new_program_takes_the_port_of_the_running_one(start):
    broker = start()
    flags = ["--port", broker.port(), "--http", "off", "--data", broker.data]
    ran = run("serve", *flags, "--check-config")
    assert ran.returncode == 0
    assert str(broker.port()) in ran.stdout and "may be the reason" in ran.stdout


def test_a_log_file_that_cannot_be_written_is_told(tmp_path):
    config = tmp_path / "quelea.toml"
    text = '[[listeners]]\nurl = "tcp://127.0.0.1:0"\n[http]\nlisten = "off"\n'
    data = tmp_path / "data"
    for target in (tmp_path / "none" / "log", tmp_path):
        config.write_text(f'{text}[log]\ntarget = "{target}"\n')
        for more in ([], ["--check-config"]):
            ran = run("serve", "--config", config, "--data", data, *more)
            assert ran.returncode == 2 and f"cannot open log file {target}" in ran.stderr
    config.write_text(f'{text}[log]\ntarget = "{tmp_path / "log"}"\n')
    assert run("serve", "--config", config, "--check-config").returncode == 0
    assert not data.exists() and not (tmp_path / "log").exists()


def test_a_flood_of_what_is_denied_and_refused_writes_little(tmp_path):
    """One line per second, client and kind, in a file that is nobody else's."""
    config = tmp_path / "quelea.toml"
    log, access = tmp_path / "log", tmp_path / "acl"
    access.write_text("topic readwrite open/#\n")
    config.write_text(
        '[[listeners]]\nurl = "tcp://127.0.0.1:0"\n[access]\nacl_file = "acl"\n'
        '[http]\nlisten = "127.0.0.1:0"\n'
        '[limits]\nclient_id_bytes_max = 100\n'
        f'[log]\ntarget = "{log}"\nformat = "json"\n'
    )
    arguments = ["serve", "--config", str(config), "--durability", "memory"]
    broker = subprocess.Popen([QUELEA, *arguments])
    try:
        def lines():
            return [json.loads(line) for line in log.read_text().splitlines()]

        def told(text):
            return [line for line in lines() if text in str(line)]

        def listening():
            found = lines() if log.exists() else []
            urls = [line["url"] for line in found if line["message"] == "listening"]
            return urls if any(line["message"] == "ready" for line in found) else None

        eventually(listening, "the ready line")
        port = int(listening()[0].rsplit(":", 1)[1])
        with Peer(port) as peer:
            peer.accepted(client_id="loud")
            for _ in range(5000):
                peer.send(publish("closed/" + "x" * 1000, "x"))
            peer.ping()
        for _ in range(200):
            with Peer(port) as peer:
                assert peer.connect(client_id="y" * 1000)[1] == 0x85
        eventually(lambda: told("client disconnected"), "the end of the loud client")
        denied, refused = told("access denied"), told("connection refused")
        assert 0 < len(denied) < 500 and 0 < len(refused) < 100
        assert denied[0]["client_id"] == "loud" and denied[0]["rule"] == "no rule grants it"
        assert len(denied[0]["topic"]) < 130 and "127.0.0.1" in denied[0]["address"]
    finally:
        broker.terminate()
        assert broker.wait(timeout=PATIENCE_SECS) == 0
    assert log.stat().st_mode & 0o777 == 0o600


def test_sighup_reopens_a_log_file_that_was_rotated(tmp_path):
    """What logrotate does: rename the file, then send SIGHUP."""
    log, rotated = tmp_path / "log", tmp_path / "log.1"
    config = tmp_path / "quelea.toml"
    config.write_text(
        f'[[listeners]]\nurl = "tcp://127.0.0.1:0"\n[http]\nlisten = "off"\n[log]\ntarget = "{log}"\n'
    )
    broker = subprocess.Popen(
        [QUELEA, "serve", "--config", str(config), "--durability", "memory"]
    )
    try:
        eventually(lambda: log.exists() and "ready" in log.read_text(), "the ready line")
        log.rename(rotated)
        broker.send_signal(signal.SIGHUP)
        eventually(lambda: log.exists() and log.read_text(), "a line in the new file")
        assert log.stat().st_mode & 0o777 == 0o600
    finally:
        broker.terminate()
        assert broker.wait(timeout=PATIENCE_SECS) == 0
    assert "ready" in rotated.read_text() and "ready" not in log.read_text()


def test_default_configuration_listens_on_loopback_only(tmp_path):
    ran = run("serve", "--print-config", cwd=tmp_path)
    assert ran.returncode == 0
    assert "127.0.0.1:1883" in ran.stdout and "0.0.0.0" not in ran.stdout


def test_check_config(tmp_path):
    config = tmp_path / "quelea.toml"
    config.write_text('[[listeners]]\nurl = "tcp://127.0.0.1:0"\n[limits]\nreceive_max = 5\n')
    ran = run("serve", "--check-config", "--config", config, "--http", "off")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "text, line, hint",
    [
        ('[limits]\nreceive_maxx = 5\n', 2, "receive_max"),
        ('[limits]\nreceive_max = 0\n', 2, "1"),
        ('[limits]\npacket_bytes_max = "many"\n', 2, "packet_bytes_max"),
        ('[[listeners]]\nurl = "http://127.0.0.1"\n', 2, "tcp://"),
        ('[limits\n', 1, ""),
        ('[[listeners]]\nurl = "tls://127.0.0.1:8883"\n', None, "certificate and key"),
    ],
)
def test_errors_of_a_configuration_name_the_place_and_what_is_allowed(tmp_path, text, line, hint):
    config = tmp_path / "quelea.toml"
    config.write_text(text)
    ran = run("serve", "--check-config", "--config", config)
    assert ran.returncode == 2
    assert hint in ran.stderr
    assert line is None or f"quelea.toml:{line}" in ran.stderr


def test_check_config_looks_at_what_a_start_needs(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o644)
    (tmp_path / "short").write_text("0123\n")
    (tmp_path / "short").chmod(0o600)
    listener = '[[listeners]]\nurl = "tcp://127.0.0.1:0"\n'
    api = '[http]\nlisten = "127.0.0.1:0"\n[api]\nlisten = "http"\ntoken_file = '
    config = tmp_path / "quelea.toml"
    for text, told in [
        ('[server]\ndata_dir = "file/data"\n', "file is not a directory"),
        (api + '"token"\n', "chmod 600"),
        (api + '"short"\n', "must be a token of at least 16"),
        (listener + 'namespace = "red"\n', "no [[namespaces]] has the name"),
        (listener + 'namespace_from = ["attribute"]\n', "sets the attribute"),
    ]:
        config.write_text(text if "[[listeners]]" in text else listener + text)
        ran = run("serve", "--check-config", "--config", config)
        assert ran.returncode == 2 and told in ran.stderr, (text, ran.stderr)
    config.write_text(listener + api + '"made"\n')
    ran = run("serve", "--check-config", "--config", config)
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "made").exists()
    config.write_text(listener + 'allow_anonymous = false\n[http]\nlisten = "off"\n')
    ran = run("serve", "--check-config", "--config", config)
    assert ran.returncode == 0 and "note: no client can log in" in ran.stdout, ran


def test_a_variable_that_is_no_text_is_not_passed_over(tmp_path):
    environment = dict(os.environb) | {b"QUELEA_auth__password_file": b"/users\xff"}
    ran = run("serve", "--check-config", "--port", 0, "--http", "off", env=environment)
    assert ran.returncode == 2 and "QUELEA_auth__password_file" in ran.stderr, ran


def test_print_config_tells_where_values_come_from(tmp_path):
    config = tmp_path / "quelea.toml"
    config.write_text("[limits]\nreceive_max = 5\n")
    environment = dict(os.environ, QUELEA_limits__in_flight_max="6")
    ran = run("serve", "--print-config", "--config", config, "--workers", 2, env=environment)
    assert ran.returncode == 0
    lines = {line.split("=")[0].strip(): line for line in ran.stdout.splitlines() if "=" in line}
    assert "5" in lines["receive_max"] and "quelea.toml:2" in lines["receive_max"]
    assert "6" in lines["in_flight_max"]
    assert "QUELEA_limits__in_flight_max" in lines["in_flight_max"]
    assert "2" in lines["workers"] and "--workers" in lines["workers"]
    assert "default" in lines["topic_alias_max"]


def test_help_has_examples():
    for command in ([], ["serve"], ["pub"], ["sub"], ["passwd"]):
        ran = run(*command, "--help")
        assert ran.returncode == 0 and "xample" in ran.stdout
    assert run("--version").stdout.startswith("quelea ")


def test_usage_errors_end_with_two():
    assert run("serve", "--no-such-flag").returncode == 2
    assert run("nonsense").returncode == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(shell):
    assert "quelea" in run("completions", shell).stdout


def test_passwd(tmp_path):
    path = tmp_path / "passwords"
    assert run("passwd", "-b", path, "anna", "secret").returncode == 0
    assert run("passwd", path, "bruno", input="geheim\ngeheim\n").returncode == 0
    text = path.read_text()
    assert "anna:$argon2id$" in text and "bruno:" in text and "secret" not in text
    assert path.stat().st_mode & 0o077 == 0
    assert run("passwd", "-D", path, "anna").returncode == 0
    assert "anna" not in path.read_text()
    assert run("passwd", "-D", path, "anna").returncode == 1


# quelea pub and quelea sub.


def sub(broker, *arguments):
    command = [QUELEA, "sub", "-h", "127.0.0.1", "-p", str(broker.port()), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pub(broker, *arguments, **options):
    ran = run("pub", "-h", "127.0.0.1", "-p", broker.port(), *arguments, **options)
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_pub_and_sub(plain, version):
    topic = fresh("cli")
    # A retained message is there whether the subscriber is early or late.
    pub(plain, "-t", topic, "-m", "hello", "-r", "-q", "1", "-V", version)
    receiver = sub(plain, "-t", topic, "-v", "-C", "1", "-V", version, "-q", "1")
    out, err = receiver.communicate(timeout=PATIENCE_SECS)
    assert (receiver.returncode, out) == (0, f"{topic} hello\n"), err
    pub(plain, "-t", topic, "-r", "-n")


def test_pub_lines_and_files(plain, tmp_path):
    topic = fresh("cli")
    with Peer(plain.port()) as peer:
        peer.accepted().subscribed(topic, 1)
        pub(plain, "-t", topic, "-l", "-q", "1", input="one\ntwo\n")
        assert [peer.message()[1] for _ in range(2)] == [b"one", b"two"]
        pub(plain, "-t", topic, "-s", input="all\nof it")
        assert peer.message()[1] == b"all\nof it"
        (tmp_path / "payload").write_bytes(bytes(range(256)))
        pub(plain, "-t", topic, "-f", tmp_path / "payload")
        assert peer.message()[1] == bytes(range(256))


def test_pub_properties_reach_mosquitto_sub(plain):
    topic = fresh("cli")
    command = ["-h", "127.0.0.1", "-p", str(plain.port()), "-V", "mqttv5", "-t", topic, "-C", "1"]
    pub(plain, "-V", "mqttv5", "-t", topic, "-m", "x", "-r", "-q", "1",
        "-D", "publish", "content-type", "text/plain", "-D", "publish", "user-property", "a", "b")
    got = subprocess.run(
        ["mosquitto_sub", *command, "-F", "%C|%P|%p"], capture_output=True, text=True, timeout=20
    )
    assert got.stdout == "text/plain|a:b|x\n"
    pub(plain, "-t", topic, "-r", "-n")


def test_sub_times_out_like_mosquitto_sub(plain):
    receiver = sub(plain, "-t", fresh("cli"), "-W", "1")
    receiver.communicate(timeout=PATIENCE_SECS)
    assert receiver.returncode == 27


def test_pub_to_nobody_is_an_error():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ran = run("pub", "-h", "127.0.0.1", "-p", unused.getsockname()[1], "-t", "a", "-m", "x")
    assert ran.returncode == 1 and ran.stderr


def test_listening_urls_are_told(start):
    broker = start()
    assert any(url.startswith("tcp://127.0.0.1:") for url in broker.urls)
    assert any(url.startswith("http://127.0.0.1:") for url in broker.urls)


def test_log_is_json_lines(start):
    broker = start()
    broker.stop()
    for event in broker.log:
        assert event["level"] != "?", f"no JSON: {event['message']}"
