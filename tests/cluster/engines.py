"""Three NATS servers that replicate streams among them, with what can befall each."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = os.environ.get("QUELEA_NATS_SERVER", str(ROOT / "target/nats/nats-server"))

CONFIG = """
server_name: engine-{index}
listen: 127.0.0.1:{port}
http: 127.0.0.1:{http}
pid_file: "{store}.pid"
jetstream {{ store_dir: "{store}", max_memory_store: 64MB, max_file_store: 2GB, sync_interval: always }}
cluster {{
  name: quelea-rounds, listen: 127.0.0.1:{route}, no_advertise: true
  routes: [{routes}]
}}
"""

# The store of the engine whose disk is made full: large enough for the streams of all rounds.
SMALL_DISK_MB = 192
READY_SECS = 60
CALL_SECS = 10
LEAD_SECS = 10
# A slow engine runs so long, and is stopped so long, in turn.
SLOW_RUN_SECS, SLOW_STOP_SECS = 0.03, 0.12
# A slow disk takes so much longer for each sync.
SLOW_SYNC_SECS = 0.005
# What an engine writes when its disk is full.
NO_SPACE = ("no space left on device", "out of resources")


class Engine:
    """One `nats-server` process on a store of its own."""

    def __init__(self, index, directory, ports, routes, small_disk):
        self.index, self.directory = index, directory
        self.port, self.http, self.route = ports
        self.routes, self.small_disk = routes, small_disk
        self.store = directory / f"engine-{index}"
        self.store.mkdir()
        self.process = None
        self._disk = None
        self._slow = None
        self._is_traced = False
        self._pid_file = Path(f"{self.store}.pid")
        self._syncs = directory / f"engine-{index}.syncs"
        self._log_path = directory / f"engine-{index}.log"
        self._log = open(self._log_path, "ab")
        # Bytes of its log that are of earlier lives.
        self._said = 0

    def start(self, is_disk_slow=False):
        self._is_traced = is_disk_slow
        self._said = self._log_path.stat().st_size
        self._pid_file.unlink(missing_ok=True)
        config = self.directory / f"engine-{self.index}.conf"
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self.routes)
        config.write_text(
            CONFIG.format(
                index=self.index, port=self.port, http=self.http, route=self.route,
                store=self.store, routes=routes,
            )
        )  # fmt: skip
        command = [ENGINE, "-c", str(config)]
        if self.small_disk:
            self._mount_small_disk()
            inside = ["nsenter", "-t", str(self._disk.pid), "-U", "-m", "--preserve-credentials"]
            command = [*inside, "--", *command]
        if is_disk_slow:
            command = [*self._slow_syncs(), *command]
        # Signals by which Go interrupts its own threads stop strace from delaying their calls.
        quiet = {"GODEBUG": "asyncpreemptoff=1"} if is_disk_slow else {}
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            env={**os.environ, **quiet},
        )  # fmt: skip

    def _slow_syncs(self):
        """What runs it so that the system delays its syncs, and nothing else."""
        calls, delay = "fsync,fdatasync", int(SLOW_SYNC_SECS * 1e6)
        return [
            "strace", "-f", "--seccomp-bpf", "-qq", "-o", str(self._syncs), "-e", f"trace={calls}",
            "-e", f"inject={calls}:delay_enter={delay}", "--",
        ]  # fmt: skip

    def slow_syncs(self):
        """How many of its syncs were delayed."""
        lines = self._syncs.read_text().splitlines() if self._syncs.exists() else []
        return sum("DELAYED" in line for line in lines)

    def _mount_small_disk(self):
        """A small file system in a mount namespace, which needs no right of root. The process that
        owns it outlives the engine, so that the store does."""
        if self._disk is not None:
            return
        mount = f'mount -t tmpfs -o size={SMALL_DISK_MB}m tmpfs "{self.store}"'
        command = ["unshare", "-Urm", "sh", "-c", f"{mount} && echo && exec cat"]
        self._disk = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._disk.stdout.readline()

    def _disk_folder(self):
        """The store as this process sees it."""
        return Path(f"/proc/{self._disk.pid}/root{self.store}")

    @property
    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        self.fast()
        if self.is_running:
            self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def _signal(self, number):
        """To the server itself; the process that was started may be one that traces it."""
        if self._is_traced and self._pid_file.exists():
            os.kill(int(self._pid_file.read_text()), number)
        else:
            self.process.send_signal(number)

    def pause(self):
        self._signal(signal.SIGSTOP)

    def resume(self):
        self._signal(signal.SIGCONT)

    def slow(self):
        """Everything takes it several times as long, its syncs too."""

        async def stop_and_go():
            while self.is_running:
                self.pause()
                await asyncio.sleep(SLOW_STOP_SECS)
                self.resume()
                await asyncio.sleep(SLOW_RUN_SECS)

        self._slow = asyncio.ensure_future(stop_and_go())

    def fast(self):
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
            if self.is_running:
                self.resume()

    def fill_disk(self):
        """No byte more fits."""
        with open(self._disk_folder() / "filler", "wb", buffering=0) as filler:
            for chunk in (b"\0" * (1 << 20), b"\0" * 4096, b"\0"):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(chunk)

    def has_no_space(self):
        """Whether it has said so since it was started."""
        said = self._log_path.read_bytes()[self._said :].decode(errors="replace")
        return any(words in said for words in NO_SPACE)

    def free_disk(self):
        (self._disk_folder() / "filler").unlink(missing_ok=True)

    async def call(self, subject, asked=None):
        """A call of the JetStream API; the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            payload = json.dumps(asked).encode() if asked is not None else b""
            head = f"PUB $JS.API.{subject} _INBOX.rounds {len(payload)}\r\n".encode()
            writer.write(b'CONNECT {"verbose":false}\r\nSUB _INBOX.rounds 1\r\n')
            writer.write(head + payload + b"\r\n")
            async with asyncio.timeout(CALL_SECS):
                while not (line := await reader.readline()).startswith(b"MSG "):
                    if line.startswith(b"PING"):
                        writer.write(b"PONG\r\n")
                answer = json.loads(await reader.readexactly(int(line.split()[-1])))
        finally:
            writer.close()
        if "error" in answer:
            raise OSError(f"{subject}: {answer['error']}")
        return answer

    async def ask(self, path):
        """A page of its monitoring; None if it does not answer."""
        try:
            status, body = await asyncio.wait_for(get(self.http, path), 2)
        except (OSError, asyncio.TimeoutError, ValueError, asyncio.IncompleteReadError):
            return None
        return json.loads(body) if status == 200 else None

    def close(self):
        self.kill()
        if self._disk is not None:
            self._disk.stdin.close()
            self._disk.wait()
        self._log.close()


def may_have_slow_disk():
    """Whether `strace` is there and may trace a child."""
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def may_have_small_disk():
    """Whether this machine lets us mount a small file system where nobody else sees it."""
    if shutil.which("unshare") is None:
        return False
    mount = "mount -t tmpfs -o size=64k tmpfs /mnt"
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True, check=False)
    return done.returncode == 0


async def get(port, path):
    """Status and body of an HTTP request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read()
        return int(head.split()[1]), body.decode(errors="replace")
    finally:
        writer.close()


class Engines:
    """All of them, as one thing that replicates."""

    def __init__(self, directory, ports, count=3):
        routes = [ports[at * 3 + 2] for at in range(count)]
        self.has_small_disk = may_have_small_disk()
        self.all = [
            Engine(
                at, directory, ports[at * 3 : at * 3 + 3], routes,
                small_disk=self.has_small_disk and at == count - 1,
            )
            for at in range(count)
        ]  # fmt: skip

    async def start(self):
        for engine in self.all:
            engine.start()
        await self.be_whole()

    async def be_whole(self):
        """Until every engine follows the leader of the whole and every stream has its replicas."""
        deadline = asyncio.get_running_loop().time() + READY_SECS
        while not await self._is_whole():
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"the engines are not whole within {READY_SECS} s")
            await asyncio.sleep(0.1)

    async def _is_whole(self):
        for engine in self.all:
            page = await engine.ask("/jsz?streams=true")
            meta = (page or {}).get("meta_cluster") or {}
            if not meta.get("leader") or meta.get("cluster_size") != len(self.all):
                return False
            if not all(self._is_stream_whole(stream, engine) for stream in streams_of(page)):
                return False
        return True

    def _is_stream_whole(self, stream, engine):
        group = stream.get("cluster") or {}
        leader, replicas = group.get("leader"), group.get("replicas") or []
        if not leader or len(replicas) != len(self.all) - 1:
            return False
        # Only the leader knows who follows it.
        return leader != f"engine-{engine.index}" or all(
            one.get("current") and not one.get("offline") for one in replicas
        )

    async def move_leader(self, stream, engine):
        """The engine leads the stream from now on, if it can within a time: it has to keep up."""
        deadline = asyncio.get_running_loop().time() + LEAD_SECS
        wanted = {"placement": {"preferred": f"engine-{engine.index}"}}
        while await self.leader(lambda name: name == stream) is not engine:
            if asyncio.get_running_loop().time() > deadline:
                return
            with contextlib.suppress(OSError, TimeoutError):
                await engine.call(f"STREAM.LEADER.STEPDOWN.{stream}", wanted)
            await asyncio.sleep(0.5)

    async def leader(self, wanted):
        """The engine that leads the first stream whose name `wanted` holds for."""
        for engine in self.all:
            page = await engine.ask("/jsz?streams=true") if engine.is_running else None
            for stream in streams_of(page):
                name = (stream.get("cluster") or {}).get("leader")
                if wanted(stream["name"]) and name:
                    return self.all[int(name.rsplit("-", 1)[1])]
        return None

    def close(self):
        for engine in self.all:
            engine.close()


def streams_of(page):
    accounts = (page or {}).get("account_details") or []
    return [stream for account in accounts for stream in account.get("stream_detail") or []]
