#!/usr/bin/env python3
"""Kills the broker with SIGKILL under load, again and again, on the same data, and judges.

`torture.py --kills 50` does so at the levels `disk` and `fsync`. Publishers and subscribers live
through it: they come back, resume their sessions, and resend. In the end every acknowledged QoS 1
message must have reached every persistent session that it matches, in order per publisher and
topic, every QoS 2 message exactly once, every shared subscription each message, every will that a
SUBACK promised the sessions that wait for it, and a reader of retained messages the last
acknowledged of each topic.

Each life of the broker has a disk of its own speed (syncs that take up to a quarter of a second
longer), connections break in the middle of commits and are back at once, and backups are made of
it. What SIGKILL cannot show, the loss of what the operating system had not yet written, is the
simulator's part.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import clients
import history as h
import slow_sync

ROOT = Path(__file__).resolve().parents[2]
QUELEA = os.environ.get("QUELEA_BIN", str(ROOT / "target/debug/quelea"))

# Small segments, so that logs are rolled and reclaimed all the time.
CONFIG = """
[server]
workers = 2
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[http]
listen = "off"
[durability]
level = "{level}"
segment_bytes = "256KiB"
[limits]
packet_bytes_max = "16KiB"
"""

READY_SECS = 60
# Some kills hit a broker that is still starting.
EARLY_KILL_SHARE = 0.15
EARLY_KILL_SECS = (0.001, 0.05)
# Newcomers subscribe while messages flow, and leave after so many kills.
NEWCOMER_KILLS = 3
# Those that are mostly away come back for one life of the broker in so many.
AWAY_KILLS = 4
# A connection breaks so often, and is back at once: a commit takes as long.
CUT_SECS = (0.02, 0.3)
# A backup is made in one of so many lives.
BACKUP_KILLS = 3
# How long a reader waits for retained messages. Only failing runs wait that long.
RETAINED_SECS = 30
# All is over when nothing came for so long; or, where something is missing, for so much longer.
QUIET_SECS = 2
MISSING_QUIET_SECS = 20
SETTLE_SECS = 120


class Broken(Exception):
    """The broker did something that ends the run."""


class Server:
    """`quelea serve` on one data directory, killed and started again."""

    def __init__(self, directory, level, rng, sync_delays_ms):
        self.directory, self.level = directory, level
        self.rng, self.sync_delays_ms = rng, sync_delays_ms
        self.config = directory / "quelea.toml"
        self.config.write_text(CONFIG.replace("{level}", level))
        self.data = directory / "data"
        self.process = None
        self.lives = 0
        self._up = asyncio.Event()
        self._port = None
        self._reading = None

    async def start(self):
        self.lives += 1
        delay_ms = self.rng.choice(self.sync_delays_ms)
        slow = slow_sync.delayed(delay_ms) if delay_ms else {}
        self.process = await asyncio.create_subprocess_exec(
            QUELEA, "serve", "--log-format=json", f"--config={self.config}",
            f"--data={self.data}", stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **slow},
        )  # fmt: skip
        self._reading = asyncio.ensure_future(self._read_log(self.process.stderr))

    async def _read_log(self, stream):
        port = None
        with open(self.directory / f"life-{self.lives}.log", "wb") as log:
            async for line in stream:
                log.write(line)
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                event = {**event, **event.get("fields", {})}
                if event.get("message") == "listening":
                    port = int(event["url"].rsplit(":", 1)[1])
                elif event.get("message") == "ready":
                    self._port = port
                    self._up.set()

    async def port(self):
        """The port of the life that is on, once it is ready."""
        await self._up.wait()
        return self._port

    async def ready(self):
        waiting = asyncio.ensure_future(self._up.wait())
        ended = asyncio.ensure_future(self.process.wait())
        await asyncio.wait({waiting, ended}, timeout=READY_SECS, return_when="FIRST_COMPLETED")
        waiting.cancel()
        ended.cancel()
        if not self._up.is_set():
            raise Broken(f"it did not become ready in its life {self.lives}: {self.last_words()}")

    async def kill(self):
        if self.process.returncode is not None:
            raise Broken(f"it ended by itself in its life {self.lives}: {self.last_words()}")
        self.process.kill()
        await self.process.wait()
        # It may have said just before that it is ready.
        await self._reading
        self._up.clear()

    async def stop(self):
        self.process.terminate()
        code = await asyncio.wait_for(self.process.wait(), READY_SECS)
        await self._reading
        if code != 0:
            raise Broken(f"it ended with {code} when asked to stop: {self.last_words()}")

    async def back_up(self):
        """A backup of whatever is there just now has to be sound, unless a kill came between."""
        life, target = self.lives, self.directory / f"backup-{self.lives}"
        process = await asyncio.create_subprocess_exec(
            QUELEA, "backup", str(self.data), str(target),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
        is_same_life = self.lives == life and self.process.returncode is None and self._up.is_set()
        if process.returncode == 0:
            self.check_log(target)
        elif is_same_life:
            raise Broken(f"no backup in its life {life}: {said.decode(errors='replace')}")
        for left in (target, target.with_name(target.name + ".partial")):
            shutil.rmtree(left, ignore_errors=True)
        return process.returncode == 0

    def last_words(self):
        log = self.directory / f"life-{self.lives}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(lines[-10:]) or "it said nothing"

    def check_log(self, data=None):
        """`quelea log check` over what it left, or over a backup."""
        command = [QUELEA, "log", "check", str(data or self.data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Broken(f"its log is not sound: {done.stdout}{done.stderr}")

    def check_losses(self):
        """Whether a start would notice that the newest file of a log is gone, or cut short."""
        rng = self.rng
        folders = sorted(self.data.glob("shard-*"))
        files = [file for folder in folders for file in folder.glob("*.log") if is_begun(file)]
        if not files:
            return
        folder = rng.choice(folders)
        newest = max((file for file in files if file.parent == folder), default=None)
        if newest is None:
            return
        before = self.records_found()
        aside = newest.with_suffix(".aside")
        newest.rename(aside)
        if rng.random() < 0.5:
            shutil.copy(aside, newest)
            os.truncate(newest, rng.randrange(newest.stat().st_size))
        after = self.records_found()
        aside.replace(newest)
        if after is not None and after != before:
            raise Broken(f"nobody notices that {newest} is gone: {before} records, {after} after")

    def records_found(self):
        """The records of each log as `quelea log check` counts them; none if it refuses."""
        command = [QUELEA, "log", "check", str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return re.findall(r"(\d+) records", done.stdout) if done.returncode == 0 else None


def is_begun(file):
    """Not a spare: its header has its own number."""
    with file.open("rb") as content:
        return int.from_bytes(content.read(36)[32:], "little") == int(file.stem)


class Run:
    """One level: the cast, the kills, the end."""

    def __init__(self, server, options, rng):
        self.server, self.options, self.rng = server, options, rng
        self.history = []
        self.started = time.monotonic()
        self.publishers = [self.publisher(at) for at in range(options.publishers)]
        self.subscribers = [
            self.subscriber("plain-1", "one/#", 1),
            self.subscriber("plain-2", "one/+", 1, version=4),
            self.subscriber("twice-1", "two/#", 2),
            self.subscriber("twice-2", "two/#", 2, version=4),
            # QoS 2 messages at a QoS 1 subscription, and the other way round.
            self.subscriber("mixed-1", "two/+", 1),
            self.subscriber("mixed-2", "one/+", 2),
            *(self.subscriber(f"member-{n}", "$share/crew/shared/#", 1) for n in range(3)),
        ]
        # A session alone, and a group with all its members.
        self.away = [
            self.subscriber("away-1", "one/#", 1),
            self.subscriber("away-2", "two/#", 2, version=4),
            *(self.subscriber(f"member-{n}", "$share/rest/shared/#", 1) for n in (3, 4)),
        ]
        wills = [("will/a", 1, 5), ("will/b", 2, 5), ("will/c", 1, 4), ("will/d", 2, 4)]
        self.mortals = [
            clients.Mortal(f"mortal-{topic[-1]}", server, self.history, topic, qos, version)
            for topic, qos, version in wills
        ]
        # A will that is being published when the broker is killed may come again, at QoS 2 too.
        self.heirs = [
            self.subscriber("heir-1", "will/#", 1),
            self.subscriber("heir-2", "will/+", 1, version=4),
        ]
        self.newcomers = []
        self.tasks = None

    def publisher(self, at):
        # No topics in common: order is judged per publisher and topic.
        topics = [
            (f"one/{at}", 1, False),
            (f"two/{at}", 2, False),
            (f"shared/{at}", 1, False),
            (f"kept/{at}", 1, True),
            (f"held/{at}", 2, True),
        ]
        rate = self.options.rate / self.options.publishers
        version = 5 if at % 2 == 0 else 4
        name, window = f"publisher-{at}", self.options.window
        return clients.Publisher(
            name, self.server, self.history, topics, window, rate, version
        )

    def subscriber(self, name, topic_filter, qos, version=5):
        return clients.Subscriber(name, self.server, self.history, topic_filter, qos, version)

    async def go(self):
        await self.server.start()
        await self.server.ready()
        async with asyncio.TaskGroup() as self.tasks:
            waiting = (*self.subscribers, *self.away, *self.heirs)
            for client in waiting:
                self.tasks.create_task(client.live())
            await self.until(lambda: all(client.promised for client in waiting))
            for mortal in self.mortals:
                self.tasks.create_task(mortal.live())
            for publisher in self.publishers:
                self.tasks.create_task(publisher.live())
                self.tasks.create_task(publisher.publish())
            for kill in range(self.options.kills):
                await self.one_life(kill)
            await self.settle()
            everybody = (*self.publishers, *self.subscribers, *self.away, *self.newcomers)
            for client in (*everybody, *self.heirs):
                client.running = False
                client.hang_up()
        await self.server.stop()
        if self.server.level != "memory":
            self.server.check_log()

    async def one_life(self, kill):
        await self.be_ready()
        reader = f"reader-{kill}"
        kept = {t for publisher in self.publishers for t, _, retain in publisher.topics if retain}
        topics = sorted(kept & self.acknowledged().keys())
        reading = self.tasks.create_task(
            clients.read_retained(reader, self.server, self.history, topics, RETAINED_SECS)
        )
        if kill % AWAY_KILLS == 0:
            for client in self.away:
                client.running = False
                client.hang_up()
        elif kill % AWAY_KILLS == AWAY_KILLS - 1:
            self.call_back()
        unrest = self.tasks.create_task(self.break_connections())
        if kill % BACKUP_KILLS == 0 and self.server.level != "memory":
            self.tasks.create_task(self.back_up())
        life_secs = self.rng.uniform(*self.options.life_secs)
        born_secs = self.rng.uniform(0, life_secs)
        await asyncio.sleep(born_secs)
        self.renew_newcomers(kill)
        await asyncio.sleep(life_secs - born_secs)
        if kill == 0:
            # However busy the machine is, there is something to lose.
            await self.until(lambda: len(self.acknowledged()) == self.topic_count())
        # A few milliseconds after the start, or it waits in vain.
        await reading
        unrest.cancel()
        await self.kill()
        if self.server.level != "memory":
            self.server.check_losses()
        while self.rng.random() < EARLY_KILL_SHARE:
            await self.server.start()
            await asyncio.sleep(self.rng.uniform(*EARLY_KILL_SECS))
            await self.kill()
        await self.server.start()

    async def break_connections(self):
        """What waits for a commit loses its connection, and is back before it is done."""
        while True:
            await asyncio.sleep(self.rng.uniform(*CUT_SECS))
            client = self.rng.choice((*self.publishers, *self.subscribers, *self.mortals))
            if client.connected.is_set():
                client.hang_up()

    async def back_up(self):
        if await self.server.back_up():
            self.history.append(h.BackedUp(self.server.lives))

    def call_back(self):
        for client in self.away:
            if not client.running:
                client.running = True
                self.tasks.create_task(client.live())

    async def kill(self):
        self.history.append(h.Killed(time.monotonic() - self.started))
        await self.server.kill()

    async def be_ready(self):
        started = time.monotonic()
        await self.server.ready()
        self.history.append(h.Ready(time.monotonic() - started))

    def renew_newcomers(self, kill):
        newcomer = self.subscriber(f"newcomer-{kill}", "one/#", 1)
        self.newcomers.append(newcomer)
        self.tasks.create_task(newcomer.live())
        if len(self.newcomers) > NEWCOMER_KILLS:
            self.tasks.create_task(self.newcomers.pop(0).leave(self.acknowledged()))

    def topic_count(self):
        return sum(len(publisher.topics) for publisher in self.publishers)

    def acknowledged(self):
        """The highest number acknowledged of each topic. No two publishers share one."""
        return {t: n for publisher in self.publishers for t, n in publisher.acknowledged.items()}

    async def settle(self):
        """Lets everything that is owed arrive."""
        await self.be_ready()
        for publisher in self.publishers:
            publisher.publishing = False
        for mortal in self.mortals:
            mortal.running = False
            mortal.hang_up()
        self.call_back()
        await self.until(lambda: not any(publisher.open for publisher in self.publishers))
        everybody = (*self.subscribers, *self.away, *self.newcomers, *self.heirs)
        await self.until(lambda: all(client.connected.is_set() for client in everybody))
        await self.be_quiet(QUIET_SECS)
        # At this level something is missing for good.
        if self.server.level != "memory" and not h.judge(self.history).is_clean:
            await self.be_quiet(MISSING_QUIET_SECS - QUIET_SECS)

    async def be_quiet(self, secs):
        seen, quiet_since = len(self.history), time.monotonic()
        while time.monotonic() - quiet_since < secs:
            await asyncio.sleep(0.1)
            if len(self.history) > seen:
                seen, quiet_since = len(self.history), time.monotonic()

    async def until(self, come_true):
        deadline = time.monotonic() + SETTLE_SECS
        while not come_true():
            if time.monotonic() > deadline:
                raise Broken(f"it left clients unanswered: {self.server.last_words()}")
            await asyncio.sleep(0.02)


def torture(level, options):
    """One level from an empty directory; the verdict. What happened is kept if it is not clean."""
    directory = Path(tempfile.mkdtemp(prefix=f"torture-{level}-"))
    rng = random.Random(f"{options.seed} {level}")

    async def run():
        server = Server(directory, level, rng, options.sync_delays_ms)
        run = Run(server, options, rng)
        failure = None
        try:
            await run.go()
        except* Broken as broken:
            failure = str(broken.exceptions[0])
        except* AssertionError as wrong:
            failure = str(wrong.exceptions[0])
        finally:
            if server.process is not None and server.process.returncode is None:
                server.process.kill()
                await server.process.wait()
        return run.history, failure

    history, failure = asyncio.run(run())
    verdict = h.judge(history)
    if failure is not None:
        verdict.find("broken", failure)
    if options.files == "never" or verdict.is_clean and options.files != "always":
        shutil.rmtree(directory)
    else:
        h.save(history, directory / "history.jsonl")
        print(f"the history, the logs of all lives and the data are in {directory}")
    tell(level, history, verdict)
    return verdict


def tell(level, history, verdict):
    counts = verdict.counts
    starts = sorted(event.after_secs for event in history if isinstance(event, h.Ready))
    slowest = f", slowest start {starts[-1]:.2f} s" if starts else ""
    print(f"{level}: {counts['Killed']} kills{slowest}")
    print(
        f"  {counts['acknowledged']:,} of {counts['Sent']:,} messages acknowledged, "
        f"{counts['owed']:,} deliveries owed, {counts['Received']:,} made"
    )
    print(
        f"  repeated: {counts['repeated at QoS 1']:,} at QoS 1, "
        f"{counts['repeated at QoS 2']:,} at QoS 2; "
        f"{counts['retained checked']:,} retained messages checked; {counts['Refused']:,} refused; "
        f"{counts['wills promised']:,} wills promised, {counts['BackedUp']} backups"
    )
    print("  " + str(verdict).replace("\n", "\n  "), flush=True)


def options_from(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=50, help="kills at each level")
    parser.add_argument("--level", action="append", choices=("memory", "disk", "fsync"),
                        help="repeatable; disk and fsync by default")  # fmt: skip
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the times of kills")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--window", type=int, default=20, help="unacknowledged per publisher")
    parser.add_argument("--rate", type=float, default=800, help="messages a second in all")
    parser.add_argument("--life-secs", type=float, nargs=2, default=(0.2, 2.5),
                        metavar=("MIN", "MAX"), help="time from ready to kill")  # fmt: skip
    parser.add_argument("--sync-delays-ms", type=int, nargs="+", default=(0, 5, 40, 250),
                        metavar="MS", help="how much longer syncs take; one for each life")  # fmt: skip
    parser.add_argument("--files", choices=("never", "if-wrong", "always"), default="if-wrong",
                        help="whether history, logs and data are kept")  # fmt: skip
    parser.add_argument("--judge", metavar="HISTORY", help="only judge a history that was kept")
    return parser.parse_args(arguments)


def main():
    # It warns of each write to a connection that a kill has just ended.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    options = options_from(sys.argv[1:])
    if options.judge:
        verdict = h.judge(h.load(options.judge))
        print(verdict)
        return 0 if verdict.is_clean else 1
    print(f"broker {QUELEA}, seed {options.seed}", flush=True)
    verdicts = [torture(level, options) for level in options.level or ("disk", "fsync")]
    return 0 if all(verdict.is_clean for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
