"""Backups over the management API: `POST /backup` and `quelea ctl backup`."""

import base64
import io
import os
import signal
import socket
import stat
import subprocess
import tarfile
import urllib.request

from broker import PATIENCE_SECS, QUELEA
from test_api import CONFIG, USERS, Api
from test_durability import BEFORE, flow, is_whole_in, put_all, subscribed_and_gone, waiting, with_messages

# An answer that the buffers of two sockets do not hold.
PAYLOAD = "x" * 60_000
PAYLOADS = 400


def archive(broker):
    request = urllib.request.Request(Api(broker).base + "/backup", data=b"", method="POST")
    request.add_header("Authorization", Api(broker).authorization)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECS) as answer:
        assert answer.headers["Content-Type"] == "application/x-tar"
        assert answer.headers["Content-Disposition"].startswith('attachment; filename="quelea-')
        return answer.read()


def unpacked(content, target):
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(target)
    return target


def ctl_backup(broker, file):
    command = [QUELEA, "ctl", "--url", f"http://127.0.0.1:{broker.port('http')}",
               "--token-file", broker.data / "api.token", "backup", file]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def unread(broker):
    """A caller that begins to read a backup, and reads no further."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", broker.port("http")))
    head = f"POST /api/v1/backup HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {Api(broker).authorization}\r\n"
    reader.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
    assert reader.recv(12) == b"HTTP/1.1 200"
    return reader


def filled(start):
    broker = start(CONFIG)
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", [PAYLOAD] * PAYLOADS)
    return broker, own


def message(text):
    return lambda event: event["message"] == text


def test_a_backup_over_the_api_is_made_while_messages_flow(start):
    broker = start(CONFIG)
    own = with_messages(broker)
    with flow(broker, "a") as sent:
        content = archive(broker)
    # What a segment has not used is no part of the archive.
    assert len(content) < 10_000_000
    broker.wait_for_log(message("backup done"))
    assert waiting(broker, own) == (True, BEFORE + sent)

    copy = unpacked(content, broker.directory / "restored")
    names = ["bans", "clock", "auth.secret", "namespaces", "shard-000/namespaces"]
    for name in [*names, "shard-000/manifest"]:
        assert stat.S_IMODE((copy / name).stat().st_mode) == 0o600, name
    for name in names:
        assert (copy / name).read_bytes() == (broker.data / name).read_bytes()
    # It would be good for longer than the rights of the caller.
    assert not (copy / "api.token").exists()
    checked = subprocess.run([QUELEA, "log", "check", copy], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    is_whole_in(start(CONFIG, data=copy), own, sent)


def test_only_admins_get_a_backup_and_it_is_noted(start, passwords):
    broker = start(USERS.replace('listen = "127.0.0.1:0"', 'listen = "http"'), {"users": passwords})
    for user in ("anna:secret", "bruno:geheim"):
        basic = base64.b64encode(user.encode()).decode()
        assert "admin" in Api(broker, f"Basic {basic}")("POST", "/backup", status=403)["detail"]
    archive(broker)
    noted = Api(broker)("GET", "/audit")["items"]
    found = [(row["caller"], row["status"]) for row in noted if row["call"].endswith("/backup")]
    assert found == [("token", 200), ("bruno", 403), ("anna", 403)]


def test_without_a_data_directory_there_is_no_backup(start):
    broker = start(CONFIG + '[durability]\nlevel = "memory"\n')
    assert "nothing to back up" in Api(broker)("POST", "/backup", status=409)["detail"]


def test_a_caller_that_goes_lets_the_logs_go(start):
    broker, own = filled(start)
    reader = unread(broker)
    assert "another backup" in Api(broker)("POST", "/backup", status=409)["detail"]
    reader.close()
    broker.wait_for_log(message("backup aborted"))
    broker.wait_for_log(message("backup over the API failed"))
    copy = unpacked(archive(broker), broker.directory / "restored")
    assert waiting(start(CONFIG, data=copy), own) == (True, [PAYLOAD] * PAYLOADS)


def test_a_backup_that_breaks_off_leaves_no_file(start):
    broker, _ = filled(start)
    # A pipe that nobody reads holds the archive up.
    reading, writing = os.pipe()
    command = [QUELEA, "ctl", "--url", f"http://127.0.0.1:{broker.port('http')}",
               "--token-file", broker.data / "api.token", "backup", "-"]
    ctl = subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert os.read(reading, 1)
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait(PATIENCE_SECS)
    with os.fdopen(reading, "rb") as rest:
        rest.read()
    assert ctl.wait(PATIENCE_SECS) == 1
    assert "broke off" in ctl.stderr.read()


def test_a_backup_by_ctl(start):
    broker, own = filled(start)
    file = broker.directory / "monday.tar"
    ran = ctl_backup(broker, file)
    out, err = ran.communicate(timeout=PATIENCE_SECS)
    assert ran.returncode == 0, err
    assert f"{file}: " in out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = ctl_backup(broker, file)
    assert "exists" in again.communicate(timeout=PATIENCE_SECS)[1] and again.returncode == 1
    assert not file.with_name("monday.tar.partial").exists()
    copy = unpacked(file.read_bytes(), broker.directory / "restored")
    assert waiting(start(CONFIG, data=copy), own) == (True, [PAYLOAD] * PAYLOADS)


def test_a_broker_stops_in_order_while_a_backup_is_read(start):
    broker, _ = filled(start)
    reader = unread(broker)
    broker.terminate()
    assert broker.process.wait(PATIENCE_SECS) == 0
    assert not any(event["level"] == "ERROR" for event in broker.log), broker.log_text()
    reader.close()
