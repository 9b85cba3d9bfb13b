"""What befalls a cluster, one function each. A fault strikes, sees that what has to happen happens,
and repairs; after it every node and engine runs, and has to catch up by itself.
"""

import asyncio
import shutil
import time

from nodes import NAME, Broken, run
from wires import IN, OUT

# A lease is valid for so long: others may take it after that.
LEASE_SECS = 3
# A promise that was under way when the engines went may still arrive within so long.
ANSWER_SECS = 0.5
# So long a node watches what it may not do: it would do it at once, if it did.
WATCH_SECS = 2
OTHER = "other-rounds"


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
        """The engine that leads the stream of some shard."""
        leader = await self.cluster.engines.leader(lambda name: name.startswith(f"{NAME}-shard"))
        if leader is None:
            raise Broken("no engine leads the streams")
        return leader

    def last_acknowledged(self):
        times = [publisher.acknowledged_at[-1:] for publisher in self.cast.publishers]
        return max((at for ats in times for at in ats), default=0.0)

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
    standby = await ground.standby()
    standby.kill()
    await ground.a_while()
    standby.start()


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
    """The node wakes up after its lease: it must neither acknowledge nor call itself ready."""
    active = await ground.active()
    active.pause()
    woken_at = time.monotonic() + ground.options.pause_secs
    await ground.cluster.await_active(active)
    await asyncio.sleep(max(0, woken_at - time.monotonic()))
    active.resume()
    await ground.only_one_serves()


async def engine_majority_lost(ground):
    """Nothing is acknowledged without a majority, and all goes on by itself with one."""
    lost = ground.rng.sample(ground.cluster.engines.all, 2)
    for engine in lost:
        engine.kill()
    lost_at = time.monotonic()
    await asyncio.sleep(LEASE_SECS + ground.rng.uniform(0.5, 2))
    late = ground.last_acknowledged() - lost_at
    if late > ANSWER_SECS:
        raise Broken(f"acknowledged {late:.2f} s after the majority of engines was gone")
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
    active = await ground.active()
    active.cut()
    await asyncio.sleep(ground.rng.uniform(0.3, 1.2))
    active.mend()
    await ground.a_while(2, 3)


async def cut_standby(ground):
    standby = await ground.standby()
    standby.cut()
    await ground.a_while(1, 5)
    standby.mend()


async def slow_engine(ground):
    engine = ground.rng.choice(ground.cluster.engines.all)
    engine.slow()
    await ground.a_while(3, 6)
    engine.fast()


async def clock_jumps(ground):
    """The wall clock of the active node jumps and comes back; then that of all nodes."""
    by = ground.rng.choice((-1, 1)) * ground.rng.uniform(20, 1_200)
    for nodes in ([await ground.active()], ground.cluster.nodes):
        for secs in (by, 0):
            for node in nodes:
                node.clock.set(secs)
            await ground.a_while()


async def full_disk(ground):
    """An engine that once found no disk space does nothing until it is started again."""
    engine = ground.cluster.engines.all[-1]
    engine.fill_disk()
    await ground.a_while(3, 5)
    engine.kill()
    engine.free_disk()
    await ground.a_while()
    engine.start()


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
    for _ in range(ground.rng.randint(1, 3)):
        standby.start()
        await ground.a_while(0.02, 0.6)
        standby.kill()
    standby.start()


async def old_data(ground):
    standby = await ground.standby()
    standby.kill()
    aside = standby.data.with_name(standby.data.name + "-aside")
    shutil.copytree(standby.data, aside)
    standby.start()
    await ground.cluster.be_whole()
    await ground.a_while(1, 2)
    standby.kill()
    standby.wipe()
    aside.rename(standby.data)
    standby.start()


async def _with_data(ground, standby, make):
    """A standby is started on data that are not its cluster's: it refuses them, or replaces them;
    it never serves them."""
    standby.kill()
    standby.wipe()
    await make(standby)
    standby.start()
    await ground.a_while(2, 3)
    if not standby.is_running:
        ground.notes.append(f"refused: {standby.last_words().splitlines()[-1][:300]}")
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

    await _with_data(ground, await ground.standby(), make)


async def data_of_a_single_node(ground):
    async def make(node):
        node.configure(is_clustered=False)
        node.start()
        await _until_ready(node)
        node.kill()
        node.configure()

    await _with_data(ground, await ground.standby(), make)


async def _until_ready(node):
    for _ in range(600):
        if (await node.readiness())[0] == 200:
            return
        await asyncio.sleep(0.05)
    raise Broken(f"node {node.index} is not ready: {node.last_words()}")


async def another_configuration(ground):
    """A node with another configuration is seen, and does no harm."""
    standby = await ground.standby()
    standby.kill()
    standby.configure(packet_bytes_max="24KiB")
    standby.start()
    await ground.a_while(2, 3)
    ground.notes.append(f"runs on: {standby.is_running}, {await standby.readiness()}")
    standby.kill()
    standby.configure()
    standby.start()


async def switchover(ground):
    active = await ground.active()
    await ground.cluster.command("switchover", node=ground.rng.choice(ground.cluster.nodes))
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
    clock_jumps,
    full_disk,
    wiped_standby,
    wiped_active,
    killed_while_catching_up,
    old_data,
    data_of_another_cluster,
    data_of_a_single_node,
    another_configuration,
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
