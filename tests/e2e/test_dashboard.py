"""The files of the dashboard, log-in sessions and the history, without a browser: `tests/pages`
has one."""

import json
import os
import pty
import re
import subprocess
import urllib.error
import urllib.request

from broker import PATIENCE_SECS, PLAIN, QUELEA, eventually
from test_api import CONFIG, USERS, Api


def get(broker, path, **headers):
    """Status, headers and body."""
    url = f"http://127.0.0.1:{broker.port('http')}{path}"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECS) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_files_have_a_policy_and_are_known_by_their_tag(start):
    broker = start(CONFIG)
    status, headers, body = get(broker, "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and headers["X-Content-Type-Options"] == "nosniff"
    for path in re.findall(r'(?:src|href)="([^"]+)"', body.decode()):
        status, headers, _ = get(broker, f"/{path}")
        assert status == 200, path
        tag = headers["ETag"]
        assert get(broker, f"/{path}", **{"If-None-Match": tag})[0] == 304
    assert get(broker, "/dashboard/vendor.py")[0] == 404
    assert get(broker, "/dashboard/../Cargo.toml")[0] == 404
    assert get(broker, "/", Host="evil.example")[0] == 421


def test_without_the_api_there_is_none(start):
    broker = start(PLAIN)
    assert get(broker, "/")[0] == 404


def test_a_session_has_the_rights_of_its_user(start, passwords):
    broker = start(USERS, {"users": passwords})
    admin = Api(broker, nth=1)

    def as_bearer(answer):
        return Api(broker, f"Bearer {answer['token']}", nth=1)

    viewer = Api(broker, "Basic YW5uYTpzZWNyZXQ=", nth=1)
    session = as_bearer(viewer("POST", "/sessions"))
    assert session("GET", "/caller") == {"name": "anna", "role": "viewer", "namespace": None}
    assert session("GET", "/settings", status=403)
    # A session makes neither another one nor a link.
    assert "log-in session" in session("POST", "/sessions", status=403)["detail"]
    session("POST", "/sessions/link", status=403)
    session("DELETE", "/sessions", status=204)
    session("GET", "/caller", status=401)
    admin("DELETE", "/sessions", status=400)

    code = viewer("POST", "/sessions/link")["code"]
    link = Api(broker, f"Bearer {code}", nth=1)
    link("GET", "/broker", status=403)
    session = as_bearer(link("POST", "/sessions"))
    link("POST", "/sessions", status=401)
    assert session("GET", "/caller")["name"] == "anna"

    # Another password ends the session; other users keep theirs.
    other = as_bearer(admin("POST", "/sessions"))
    path = str(broker.directory / "users")
    subprocess.run([QUELEA, "passwd", "-b", path, "anna", "other"], check=True)
    broker.reload()
    eventually(lambda: is_refused(session))
    assert other("GET", "/caller")["role"] == "admin"
    # A secret of a session is in no line of the log.
    assert other.authorization.split()[1] not in broker.log_text()
    broker.restart()
    Api(broker, other.authorization, nth=1)("GET", "/caller", status=401)


def is_refused(api):
    try:
        api("GET", "/caller", status=401)
    except AssertionError:
        return False
    return True


def test_wrong_passwords_are_limited_at_log_in(start, passwords):
    broker = start(USERS, {"users": passwords})
    wrong = Api(broker, "Basic YW5uYTp3cm9uZw==", nth=1)
    for _ in range(20):
        wrong("POST", "/sessions", status=401)
    assert "wait" in wrong("POST", "/sessions", status=429)["fix"]


def test_history_and_totals_have_the_names_of_metrics(start):
    broker = start(CONFIG)
    api = Api(broker)
    totals = {row["name"]: row for row in api("GET", "/totals")["series"]}
    names = {name.split("{")[0] for name in broker.metrics()}
    assert {name.split("{")[0] for name in totals} <= names
    assert totals["quelea_connections"] == {"name": "quelea_connections", "kind": "gauge", "value": 0}
    eventually(lambda: api("GET", "/history")["times_ms"])
    answer = api("GET", "/history", series="quelea_sessions,quelea_messages_dropped_total")
    assert len(answer["series"]) > 2
    assert all(len(row["values"]) == len(answer["times_ms"]) for row in answer["series"])
    assert "no_such" in api("GET", "/history", series="no_such", status=400)["detail"]
    api("GET", "/history", window_secs=1, status=400)


def test_one_command_prints_a_link_on_a_terminal(tmp_path):
    screen, terminal = pty.openpty()
    command = [QUELEA, "serve", "--dashboard", "--port=0", "--http=127.0.0.1:0", f"--data={tmp_path}"]
    broker = subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL)
    os.close(terminal)
    try:
        text = ""
        while "once" not in text:
            text += os.read(screen, 4096).decode()
        url, code = re.search(r"dashboard: (http://[^/]+)/#login=([0-9a-f]{64}) ", text).groups()
        request = urllib.request.Request(f"{url}/api/v1/sessions", method="POST")
        request.add_header("Authorization", f"Bearer {code}")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECS) as answer:
            assert json.loads(answer.read())["role"] == "admin"
    finally:
        broker.kill()
        broker.wait()
        os.close(screen)
