"""Where a siege takes place: a broker in a cgroup of 1 GB, with its memory and its log watched."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import service

ROOT = Path(__file__).resolve().parents[2]
QUELEA = os.environ.get("QUELEA_BIN", str(ROOT / "target/debug/quelea"))

READY_SECS = 30
MEMORY_BYTES = 1 << 30
WATCH_SECS = 0.02
# Without a cgroup nothing but this ends a broker that eats the machine.
RUNAWAY_BYTES = 3 << 30

USERS = (("anna", "secret"), ("bruno", "geheim"), ("eve", "eve"), ("otto", "still"))
# Who may log in by SCRAM, too.
SCRAM_USER = ("sara", "secret")

# The first listener admits everybody, the second those with a password (or those whom the service
# of the case knows), the third who come through a proxy. Limits are the defaults.
CONFIG = """
[[listeners]]
url = "tcp://127.0.0.1:0"
name = "open"
allow_anonymous = true
[[listeners]]
url = "tcp://127.0.0.1:0"
name = "closed"
{closed}
[[listeners]]
url = "tcp://127.0.0.1:0"
name = "proxied"
allow_anonymous = true
proxy_protocol = true
trusted_proxies = ["127.0.0.0/8"]
[[listeners]]
url = "ws://127.0.0.1:0"
allow_anonymous = true
[[listeners]]
url = "tls://127.0.0.1:0"
allow_anonymous = true
[listeners.tls]
certificate = "{dir}/server.crt"
key = "{dir}/server.key"
[auth]
password_file = "{dir}/passwords"
[http]
listen = "127.0.0.1:0"
{more}
"""


class Cgroup:
    """A group with a limit of memory, or none where this process may not make one."""

    def __init__(self, name):
        self.path, self.tasks = None, None
        for path, limit in cgroup_places(name):
            try:
                path.mkdir()
            except OSError:
                continue
            try:
                (path / limit).write_text(str(MEMORY_BYTES))
                self.path, self.tasks = path, path / "cgroup.procs"
                return
            except OSError:
                path.rmdir()

    def enter(self):
        """Called in the child, between fork and exec."""
        if self.tasks is not None:
            self.tasks.write_text(str(os.getpid()))

    def remove(self):
        deadline = time.monotonic() + READY_SECS
        while self.path is not None and time.monotonic() < deadline:
            try:
                self.path.rmdir()
                return
            except OSError:
                # The last of its pages go a moment after its last process.
                time.sleep(0.05)


def cgroup_places(name):
    """Below the group of this process, in the second version of cgroups and the first."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        own = own.lstrip("/")
        if not controllers:
            yield Path("/sys/fs/cgroup") / own / name, "memory.max"
        elif "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory") / own / name, "memory.limit_in_bytes"


# For the cases that are about rights.
ACCESS = """
topic readwrite siege/#
topic readwrite siege-retained/#

user anna
topic readwrite #

user bruno
topic readwrite bruno/#

user eve
topic read jobs/eve/+
topic readwrite eve/#

pattern readwrite lists/%{attributes.one}/%{attributes.two}/up
pattern readwrite lists/%{attributes.one}/%{attributes.two}/down
pattern readwrite more/%{attributes.two}/%{attributes.one}/#
pattern write devices/%c/up
pattern read devices/%c/down
"""


def make_certificate(directory):
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-keyout", "server.key", "-out", "server.crt"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


class Server:
    """`quelea serve` with default limits, in a cgroup, its log in a file."""

    def __init__(self, more=""):
        self.directory = Path(tempfile.mkdtemp(prefix="quelea-siege-"))
        config = self.directory / "quelea.toml"
        for user, password in USERS:
            file = str(self.directory / "passwords")
            subprocess.run([QUELEA, "passwd", "-b", file, user, password], check=True)
        file = str(self.directory / "passwords")
        subprocess.run([QUELEA, "passwd", "--scram", "-b", file, *SCRAM_USER], check=True)
        make_certificate(self.directory)
        (self.directory / "access").write_text(ACCESS)
        self.service = service.start() if "{service}" in more else None
        config.write_text(self._config(more))
        self.cgroup = Cgroup(f"quelea-siege-{os.getpid()}")
        environment = dict(os.environ)
        if self.cgroup.path is None and "memory_bytes_max" not in more:
            environment["QUELEA_limits__memory_bytes_max"] = str(MEMORY_BYTES // 10 * 8)
        self.log = self.directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [QUELEA, "serve", "--log-format=json", f"--config={config}",
                 f"--data={self.directory / 'data'}"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                env=environment, preexec_fn=self.cgroup.enter,
            )  # fmt: skip
        self.urls = self._wait_until_ready()
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._watch = threading.Thread(target=self._watch_memory, daemon=True)
        self._watch.start()

    def _config(self, more):
        text = CONFIG.replace("{more}", more).replace("{dir}", str(self.directory))
        # Nobody but the service knows those who behave: what stops it stops them.
        closed = 'authentication = ["service"]' if self.service else ""
        url = self.service.url if self.service else ""
        return text.replace("{closed}", closed).replace("{service}", url)

    def _wait_until_ready(self):
        deadline = time.monotonic() + READY_SECS
        while time.monotonic() < deadline and self.process.poll() is None:
            events = self.events()
            if any(event.get("message") == "ready" for event in events):
                return [event["url"] for event in events if event.get("message") == "listening"]
            time.sleep(0.01)
        self.stop()
        raise AssertionError("the broker did not become ready")

    def events(self):
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            found.append({**event, **event.pop("fields", {})})
        return found

    def port(self, scheme="tcp", nth=0, missing=None):
        urls = [url for url in self.urls if url.startswith(scheme + "://")]
        if len(urls) <= nth and missing is not None:
            return missing
        return int(urls[nth].split("://")[1].split("/")[0].rsplit(":", 1)[1])

    def rss_bytes(self):
        """Resident memory; 0 when the process has ended."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0

    def _watch_memory(self):
        while not self._is_over.wait(WATCH_SECS):
            self.peak_bytes = max(self.peak_bytes, self.rss_bytes())
            if self.cgroup.path is None and self.peak_bytes > RUNAWAY_BYTES:
                self.process.kill()

    def log_bytes(self):
        return self.log.stat().st_size

    def metrics(self):
        url = f"http://127.0.0.1:{self.port('http')}/metrics"
        with urllib.request.urlopen(url, timeout=READY_SECS) as answer:
            lines = answer.read().decode().splitlines()
        lines = [line for line in lines if line and not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def is_alive(self):
        return self.process.poll() is None

    def stop(self):
        """The exit code: -9 where the kernel has killed it."""
        if hasattr(self, "_is_over"):
            self._is_over.set()
            self._watch.join()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(READY_SECS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.cgroup.remove()
        if self.service is not None:
            self.service.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        return code


class Bystander:
    """One of the roles of `pair.py`, in a process of its own."""

    def __init__(self, role, server, login=USERS[0]):
        options = {
            "port": server.port("tcp", 1), "http_port": server.port("http"),
            "user": login[0], "password": login[1],
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("pair.py")), role, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n", f"the {role} did not come in"

    def phase(self, name):
        if self.process.poll() is None:
            try:
                self.process.stdin.write(name + "\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                # It was cut off, and tells so at the end.
                pass

    def end(self):
        self.phase("end")
        told = self.process.stdout.read()
        self.process.wait()
        return json.loads(told)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
