"""What befalls a cluster, one function each. A fault strikes, sees that what has to happen happens,
and repairs; after it every node and engine runs, and has to catch up by itself.
"""

import asyncio
import datetime
import shutil
import time

import engines
import programs
from nodes import READY_SECS, STREAM, Broken, run
from wires import IN, OUT
from witness import Witness

# A lease is valid for so long: others may take it after that.
LEASE_SECS = 3
# When a majority of engines is gone: what was under way is over.
OVER_SECS = 2
# So long a node watches what it may not do: it would do it at once, if it did.
WATCH_SECS = 2
OTHER = "other-rounds"
# QoS 1 messages that wait in the socket of a node that is stopped.
WITNESSED = 20
# A clock that was set shows in the log with no more difference than this.
CLOCK_SLACK_SECS = 15
QUOTA_EXCEEDED = 0x97
# A stream that is made small has so many bytes left.
LEFT_BYTES = 64 * 1024


class Ground:
    """The cluster, its load, and chance."""

    def __init__(self, cluster, cast, rng, options):
        self.cluster, self.cast, self.rng, self.options = cluster, cast, rng, options
        # What is worth a line of the report.
        self.notes = []

    async def active(self):
        return await self.cluster.await_active()

    async def standbys(self):
        active = await self.active()
        return [node for node in self.cluster.nodes if node is not active]

    async def standby(self):
        return self.rng.choice(await self.standbys())

    async def a_while(self, low=0.5, high=2.0):
        await asyncio.sleep(self.rng.uniform(low, high))

    async def stream_leader(self):
        """The engine that leads the stream of the shards."""
        leader = await self.cluster.engines.leader(lambda name: name == STREAM)
        if leader is None:
            raise Broken("no engine leads the stream")
        return leader

    def last_acknowledged(self):
        times = [publisher.acknowledged_at[-1:] for publisher in self.cast.publishers]
        return max((at for ats in times for at in ats), default=0.0)

    async def until(self, what, come_true):
        """Waits for what has to happen, and says when it does not."""
        deadline = time.monotonic() + READY_SECS
        while not come_true():
            if time.monotonic() > deadline:
                raise Broken(f"{what} did not come true: {await self.cluster.words()}")
            await asyncio.sleep(0.02)

    async def until_active(self, node):
        deadline = time.monotonic() + READY_SECS
        while await self.cluster.active() is not node:
            if time.monotonic() > deadline:
                raise Broken(f"node {node.index} does not serve: {await self.cluster.words()}")
            await asyncio.sleep(0.05)

    async def epoch(self):
        """It grows with each takeover."""
        return (await self.cluster.status())["epoch"]

    async def facts_of(self, node):
        """What the cluster knows of a node."""
        nodes = (await self.cluster.status())["nodes"]
        return next(one for one in nodes if one["node"] == f"node-{node.index}")

    async def only_one_serves(self, secs=WATCH_SECS):
        """Asks all nodes again and again: two that are ready are found by the question."""
        until = time.monotonic() + secs
        while time.monotonic() < until:
            await self.cluster.active()
            await asyncio.sleep(0.02)


async def kill_active(ground):
    active = await ground.active()
    active.kill()
    await ground.cluster.await_active(active)
    active.start()


async def kill_standby(ground):
    standby, epoch = await ground.standby(), await ground.epoch()
    standby.kill()
    await ground.a_while()
    standby.start()
    await _is_unmoved(ground, epoch)


async def _is_unmoved(ground, epoch):
    """The active node has lost nothing by it."""
    now = await ground.epoch()
    if now != epoch:
        raise Broken(f"the active node changed: epoch {now} after {epoch}")


async def kill_stream_leader(ground):
    leader = await ground.stream_leader()
    leader.kill()
    await ground.a_while(1, 4)
    leader.start()


async def kill_active_and_stream_leader(ground):
    active, leader = await ground.active(), await ground.stream_leader()
    active.kill()
    leader.kill()
    await ground.cluster.await_active(active)
    leader.start()
    active.start()


async def pause_active(ground):
    """The node wakes up after its lease, with messages to acknowledge: it must send nothing, and
    not call itself ready."""
    active = await ground.active()
    witness = await Witness.of(active)
    active.pause()
    await ground.until("the stop", active.is_stopped)
    await witness.publish(WITNESSED)
    woken_at = time.monotonic() + ground.options.pause_secs
    await ground.cluster.await_active(active)
    await asyncio.sleep(max(0, woken_at - time.monotonic()))
    if not active.is_stopped():
        raise Broken("the active node was not stopped past its lease")
    active.resume()
    said = await witness.rest(READY_SECS)
    witness.close()
    if said:
        raise Broken(f"a node that woke up after its lease sent {said.hex(' ')}")
    await ground.only_one_serves()


async def engine_majority_lost(ground):
    """Nothing is acknowledged without a majority, and all goes on by itself with one."""
    lost = ground.rng.sample(ground.cluster.engines.all, 2)
    for engine in lost:
        engine.kill()
    await asyncio.sleep(OVER_SECS)
    last = ground.last_acknowledged()
    await asyncio.sleep(LEASE_SECS + ground.rng.uniform(0.5, 2))
    late = ground.last_acknowledged() - last
    if late > 0:
        raise Broken(f"acknowledged {late:.2f} s after all that was under way")
    if await ground.cluster.active() is not None:
        raise Broken("a node calls itself ready though its lease cannot be renewed")
    for engine in lost:
        engine.start()
    await ground.cluster.await_active()


async def _cut_active(ground, *directions):
    active = await ground.active()
    active.cut(*directions)
    await ground.cluster.await_active(active)
    await ground.a_while()
    active.mend()
    await ground.only_one_serves()


async def cut_active(ground):
    await _cut_active(ground)


async def cut_active_out(ground):
    await _cut_active(ground, OUT)


async def cut_active_in(ground):
    await _cut_active(ground, IN)


async def cut_active_short(ground):
    """Shorter than the lease: the same node goes on, with its connections."""
    active, epoch = await ground.active(), await ground.epoch()
    witness = await Witness.of(active)
    active.cut()
    await asyncio.sleep(ground.rng.uniform(0.3, 1.2))
    _was_cut(active)
    active.mend()
    await ground.a_while(2, 3)
    await _is_unmoved(ground, epoch)
    if not await witness.is_served():
        raise Broken("a connection did not outlive a cut that is shorter than the lease")
    witness.close()


def _was_cut(node):
    if not any(wire.held for wire in node.wires):
        raise Broken("nothing waited at the cut: the node did not feel it")


async def cut_standby(ground):
    standby, epoch = await ground.standby(), await ground.epoch()
    standby.cut()
    await ground.a_while(1, 5)
    _was_cut(standby)
    standby.mend()
    await _is_unmoved(ground, epoch)


async def slow_engine(ground):
    """An engine that is stopped and goes on in turns: all it does takes longer."""
    engine = ground.rng.choice(ground.cluster.engines.all)
    engine.slow()
    slowest = 0.0
    until = time.monotonic() + ground.rng.uniform(3, 6)
    while time.monotonic() < until:
        asked_at = time.monotonic()
        await engine.ask("/varz")
        slowest = max(slowest, time.monotonic() - asked_at)
        await asyncio.sleep(0.05)
    engine.fast()
    if slowest < engines.SLOW_STOP_SECS / 2:
        raise Broken(f"the engine was not slow: it answered within {slowest:.3f} s")
    ground.notes.append(f"answers took up to {slowest:.2f} s")


async def slow_disk(ground):
    """An engine waits for each of its syncs. It leads the stream, if it can keep up. It has to be
    started again for that, twice, which takes most of the time without service."""
    engine = next(one for one in ground.cluster.engines.all if not one.small_disk)
    engine.kill()
    engine.start(is_disk_slow=True)
    await ground.until("a slow sync", engine.slow_syncs)
    await ground.cluster.engines.move_leader(STREAM, engine)
    before = engine.slow_syncs()
    await ground.a_while(4, 6)
    leads = await ground.stream_leader() is engine
    delayed = engine.slow_syncs() - before
    if delayed == 0:
        raise Broken("no sync was delayed: the disk was not slow")
    ground.notes.append(f"{delayed} syncs delayed, leader of the stream: {leads}")
    engine.kill()
    engine.start()


async def clock_jumps(ground):
    """The wall clock of the active node jumps and comes back; then that of all nodes."""
    by = ground.rng.choice((-1, 1)) * ground.rng.uniform(20, 1_200)
    for nodes in ([await ground.active()], ground.cluster.nodes):
        for secs in (by, 0):
            for node in nodes:
                node.clock.set(secs)
            await _shows_clock(ground, nodes[0], secs)
            await ground.a_while()


async def _shows_clock(ground, node, secs):
    """The log of the node has the time that its clock was set to."""
    lines = len(node.log())

    def is_set():
        stamps = [line["timestamp"] for line in node.log()[lines:]]
        times = [datetime.datetime.fromisoformat(stamp).timestamp() for stamp in stamps]
        return any(abs(at - time.time() - secs) < CLOCK_SLACK_SECS for at in times)

    # A client that comes and goes makes the node write.
    (await Witness.of(node)).close()
    await ground.until(f"the clock of node {node.index} by {secs:.0f} s", is_set)


async def full_disk(ground):
    """An engine that once found no disk space does nothing until it is started again."""
    engine = ground.cluster.engines.all[-1]
    engine.fill_disk()
    await ground.until("an engine without space", engine.has_no_space)
    await ground.a_while(3, 5)
    engine.kill()
    engine.free_disk()
    await ground.a_while()
    engine.start()


async def full_streams(ground):
    """The stream takes nothing more: publishes are refused until it does."""
    engine = ground.cluster.engines.all[0]
    info = await engine.call(f"STREAM.INFO.{STREAM}")
    small = {**info["config"], "max_bytes": info["state"]["bytes"] + LEFT_BYTES}
    await engine.call(f"STREAM.UPDATE.{STREAM}", small)
    refusal = await _refusal(ground)
    await ground.a_while(2, 3)
    await engine.call(f"STREAM.UPDATE.{STREAM}", info["config"])
    if refusal != QUOTA_EXCEEDED:
        raise Broken(f"refused with {refusal:#x}, not with {QUOTA_EXCEEDED:#x}")


async def _refusal(ground):
    """The reason with which a publish is refused that the log would have to keep. Those that were
    taken before the stream was full are not answered until there is space."""
    deadline = time.monotonic() + READY_SECS
    while time.monotonic() < deadline:
        witness = await Witness.of(await ground.active())
        reason = await witness.retain()
        witness.close()
        if reason:
            return reason
    raise Broken(f"the stream is full, and nothing is refused: {await ground.cluster.words()}")


async def wiped_standby(ground):
    standby = await ground.standby()
    standby.kill()
    standby.wipe()
    standby.start()


async def wiped_active(ground):
    """A machine is lost with its disk, and replaced by an empty one."""
    active = await ground.active()
    active.kill()
    active.wipe()
    await ground.cluster.await_active(active)
    active.start()


async def killed_while_catching_up(ground):
    standby = await ground.standby()
    standby.kill()
    standby.wipe()
    tries = ground.rng.randint(1, 3)
    for at in range(tries):
        standby.start()
        await ground.until("files of a copy", lambda: any(standby.data.glob("shard-*/*")))
        if at > 0:
            await ground.a_while(0.02, 0.6)
        has_caught_up = "caught up" in standby.log_text()
        standby.kill()
        if at == 0 and has_caught_up:
            ground.notes.append("it had caught up before it was killed")
    standby.start()


async def old_data(ground):
    standby = await ground.standby()
    standby.kill()
    aside = standby.data.with_name(standby.data.name + "-aside")
    shutil.copytree(standby.data, aside, ignore=lambda *_: ["control"])
    standby.start()
    await ground.cluster.be_whole()
    await ground.a_while(1, 2)
    standby.kill()
    if _content(aside) == _content(standby.data):
        raise Broken("the copy has not grown: the data are not old")
    standby.wipe()
    aside.rename(standby.data)
    standby.start()


def _content(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}.values()


async def _with_data(ground, standby, make, refusal):
    """A standby that finds data of something else refuses to start, and says why."""
    standby.kill()
    standby.wipe()
    await make(standby)
    standby.start()
    await ground.until("the refusal of foreign data", lambda: not standby.is_running)
    if refusal not in standby.last_words():
        raise Broken(f"'{refusal}' is not said: {standby.last_words()}")
    standby.wipe()
    standby.start()


async def data_of_another_cluster(ground):
    async def make(node):
        node.configure(name=OTHER)
        await ground.cluster.init(node)
        node.start()
        await _until_ready(node)
        node.kill()
        node.configure()

    await _with_data(ground, await ground.standby(), make, "the local copy of another cluster")


async def data_of_a_single_node(ground):
    async def make(node):
        node.configure(is_clustered=False)
        node.start()
        await _until_ready(node)
        node.kill()
        node.configure()

    refusal = "has the log of a broker without a cluster"
    await _with_data(ground, await ground.standby(), make, refusal)


async def _until_ready(node):
    for _ in range(600):
        if (await node.readiness())[0] == 200:
            return
        await asyncio.sleep(0.05)
    raise Broken(f"node {node.index} is not ready: {node.last_words()}")


async def another_configuration(ground):
    """A node with another configuration is seen, and does no harm."""
    standby = await ground.standby()
    checksum = (await ground.facts_of(standby))["config"]
    standby.kill()
    standby.configure(when_full="wait")
    standby.start()
    await ground.cluster.be_whole()
    await _is_noticed(ground, standby, "another node has other settings")
    if (await ground.facts_of(standby))["config"] == checksum:
        raise Broken("the status does not tell another configuration from its own")
    standby.kill()
    standby.configure()
    standby.start()
    await ground.cluster.be_whole()
    if (await ground.facts_of(standby))["config"] != checksum:
        raise Broken("the status tells the same configuration from itself")


async def _is_noticed(ground, node, words):
    """Some other node writes it down, with the name of this one."""

    def has_it():
        others = [other for other in ground.cluster.nodes if other is not node]
        lines = [line for other in others for line in other.log() if words in line["message"]]
        return any(line.get("node") == f"node-{node.index}" for line in lines)

    await ground.until(f"'{words}'", has_it)


async def another_version(ground):
    """A node of another version is seen; it follows, and serves when it is asked to."""
    standby = await ground.standby()
    own = standby.program
    other = standby.directory / f"another-version-{standby.index}"
    version = programs.another_version(own, other)
    await standby.stop()
    standby.program = other
    standby.start()
    await ground.cluster.be_whole()
    await _is_noticed(ground, standby, "another node has another version")
    told = (await ground.facts_of(standby))["version"]
    if told != version:
        raise Broken(f"the status says version {told}, not {version}")
    await ground.cluster.command("switchover", f"node-{standby.index}")
    await ground.until_active(standby)
    await ground.a_while()
    await standby.stop()
    await ground.cluster.await_active(standby)
    standby.program = own
    standby.start()
    await ground.cluster.be_whole()
    other.unlink()
    ground.notes.append(f"version {version} beside {programs.version_of(own)}")


async def switchover(ground):
    """Asked for again while messages run ahead of every standby: then it is refused."""
    active = await ground.active()
    node = ground.rng.choice(ground.cluster.nodes)
    deadline = time.monotonic() + READY_SECS
    while True:
        try:
            await ground.cluster.command("switchover", node=node)
            break
        except Broken as broken:
            if "no standby has caught up" not in str(broken) or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
    await ground.cluster.await_active(active)


async def two_switchovers(ground):
    """Two operators at once: one of them may be refused, and one node serves in the end."""
    active = await ground.active()
    nodes = [node for node in ground.cluster.nodes if node is not active]
    commands = [ground.cluster.switchover_command(node) for node in nodes]
    done = await asyncio.gather(*(run(command) for command in commands))
    if all(code != 0 for code, _ in done):
        raise Broken(f"neither of two switchovers was done: {done}")
    await ground.cluster.await_active(active)


async def rolling_restart(ground):
    """Standbys first, the active node last, each when all are whole: the documented order."""
    for node in [*await ground.standbys(), await ground.active()]:
        await node.stop()
        node.start()
        await ground.cluster.be_whole()


ALL = [
    kill_active,
    kill_standby,
    kill_stream_leader,
    kill_active_and_stream_leader,
    pause_active,
    engine_majority_lost,
    cut_active,
    cut_active_out,
    cut_active_in,
    cut_active_short,
    cut_standby,
    slow_engine,
    slow_disk,
    clock_jumps,
    full_disk,
    full_streams,
    wiped_standby,
    wiped_active,
    killed_while_catching_up,
    old_data,
    data_of_another_cluster,
    data_of_a_single_node,
    another_configuration,
    another_version,
    switchover,
    two_switchovers,
    rolling_restart,
]

# Those of one node without engines: to try the rounds themselves.
async def kill_and_start(ground):
    active = await ground.active()
    active.kill()
    active.start()
    await ground.cluster.await_active()


SINGLE = [kill_and_start, clock_jumps]

# The longest time without service that a fault may cost, in seconds, where one is promised.
GOALS = {
    "switchover": 1,
    "kill_active": 5,
    "wiped_active": 5,
    "kill_active_and_stream_leader": 10,
}


def words(fault):
    return fault.__name__.replace("_", " ")
