"""`quelea health` and `quelea doctor`."""

import json
import os
import shutil
import socket
import subprocess


from broker import PATIENCE_SECS, PLAIN, QUELEA


def run(*arguments):
    env = {name: value for name, value in os.environ.items() if not name.startswith("QUELEA_")}
    return subprocess.run(
        [QUELEA, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_SECS,
        env=env,
    )


def health(*arguments):
    done = run("health", *arguments)
    return done.returncode, done.stdout + done.stderr


def test_health_tells_a_broker_from_none(start):
    broker = start()
    url = f"http://127.0.0.1:{broker.port('http')}"
    assert health("--url", url) == (0, "ready\n")
    assert health("--url", url, "--ready") == (0, "ready\n")
    mqtt = f"mqtt://127.0.0.1:{broker.port()}"
    assert health("--url", mqtt)[0] == 0
    broker.terminate()
    assert broker.wait() == 0
    code, text = health("--url", url)
    assert code == 1 and "refused" in text
    assert health("--url", mqtt)[0] == 1


def test_health_gives_up_on_who_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for scheme in ("http", "mqtt"):
            assert health("--url", f"{scheme}://127.0.0.1:{port}", "--timeout", "1")[0] == 1


def test_health_without_http_sends_a_connect(start, tmp_path):
    config = f'[[listeners]]\nurl = "unix://{tmp_path}/q"\nallow_anonymous = true\n'
    broker = start(config + '[http]\nlisten = "off"\n')
    code, text = health("--config", broker.config)
    assert code == 0 and "accepts clients" in text, text
    # One that refuses this client works.
    closed = start(PLAIN.replace("true", "false"))
    code, text = health("--url", f"mqtt://127.0.0.1:{closed.port()}", "--ready")
    assert code == 0 and "answers CONNECT" in text, text


def doctor(*arguments):
    done = run("doctor", "--json", *arguments)
    report = json.loads(done.stdout)
    assert (done.returncode == 1) == (report["level"] == "fail"), report
    return report["checks"], done.returncode


def levels(checks, area):
    return [check["level"] for check in checks if check["area"] == area]


def test_doctor_looks_at_a_running_broker_and_changes_nothing(start, certs):
    broker = start(
        '[[listeners]]\nurl = "tls://127.0.0.1:0"\nallow_anonymous = true\n'
        f'tls = {{ certificate = "{certs}/server.crt", key = "{certs}/server.key" }}\n'
    )
    before = sorted(path.name for path in broker.data.rglob("*"))
    checks, code = doctor("--config", broker.config, "--data", broker.data)
    assert code == 0, checks
    assert sorted(path.name for path in broker.data.rglob("*")) == before
    # They were made for two days.
    assert levels(checks, "certificates") == ["warn"]
    assert not any("backup" in event["message"] for event in broker.log)
    assert any("a sync takes" in check["text"] for check in checks)
    assert any("the running broker may open" in check["text"] for check in checks)
    assert broker.get("/healthz")[0] == 200


def test_doctor_names_what_is_wrong_and_how_to_mend_it(certs, tmp_path):
    shutil.copy(certs / "server.crt", tmp_path / "server.crt")
    shutil.copy(certs / "client.key", tmp_path / "server.key")
    (tmp_path / "passwords").write_text("")
    (tmp_path / "passwords").chmod(0o644)
    (tmp_path / "data").mkdir(mode=0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "quelea.toml").write_text(
            f'[[listeners]]\nurl = "tcp://127.0.0.1:{port}"\n[auth]\npassword_file = "passwords"\n'
            '[server]\ndata_dir = "data"\n'
        )
        checks, code = doctor("--config", tmp_path / "quelea.toml")
    assert code == 1 and levels(checks, "addresses") == ["fail"]
    fixes = [check.get("fix", "") for check in checks]
    assert f"chmod 700 {tmp_path}/data" in fixes
    assert all("fix" in check for check in checks if check["level"] != "ok")
    with open(tmp_path / "quelea.toml", "a") as config:
        config.write('[[listeners]]\nurl = "tls://127.0.0.1:0"\n')
        config.write('tls = { certificate = "server.crt", key = "server.key" }\n')
    checks, code = doctor("--config", tmp_path / "quelea.toml")
    assert code == 1 and levels(checks, "certificates") == ["fail"]


def test_doctor_reports_a_configuration_that_cannot_be_read(tmp_path):
    (tmp_path / "quelea.toml").write_text("[servr]\n")
    checks, code = doctor("--config", tmp_path / "quelea.toml")
    assert code == 1 and levels(checks, "configuration") == ["fail"]
    assert "server" in checks[0]["text"]
