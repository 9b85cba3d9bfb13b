"""The rounds of `tests/cluster`: what they measure, and the wires that they cut."""

import asyncio
import random
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

import cast
import rounds
import faults
from wires import IN, OUT, Wire


def publisher(*times):
    return SimpleNamespace(acknowledged_at=list(times))


def test_the_gap_is_that_of_the_worst_publisher_from_before_the_fault_on():
    steady, hit = publisher(*range(20)), publisher(0, 4, 11, 12, 20)
    assert cast.without_service([steady], 5, 19) == 1
    assert cast.without_service([steady, hit], 5, 20) == 8
    # A gap that was over before the fault is none of its.
    assert cast.without_service([publisher(0, 9, 10, 11)], 10, 11) == 1


def test_a_publisher_that_is_not_served_again_has_a_gap_to_the_end():
    assert cast.without_service([publisher(0, 1)], 2, 30) == 29
    assert cast.without_service([publisher()], 2, 30) == 28


def options(**other):
    plain = dict(fault=None, short=False, single=False, rounds=50)
    return SimpleNamespace(**{**plain, **other})


def test_every_fault_comes_as_often_as_the_others_and_the_seed_gives_the_order():
    order = rounds.chosen(options(rounds=2 * len(faults.ALL)), random.Random(7))
    assert all(1 <= order.count(fault) <= 3 for fault in set(order))
    assert order == rounds.chosen(options(rounds=2 * len(faults.ALL)), random.Random(7))
    assert order != rounds.chosen(options(rounds=2 * len(faults.ALL)), random.Random(8))


def test_a_fault_that_nobody_knows_is_refused():
    try:
        rounds.chosen(options(fault=["no_such"]), random.Random(1))
    except SystemExit as refused:
        assert "no_such" in str(refused)
    else:
        raise AssertionError("it was taken")


def test_a_wire_cut_one_way_holds_what_is_sent_and_passes_what_comes():
    async def go():
        served = asyncio.Queue()

        async def engine(reader, writer):
            served.put_nowait((reader, writer))

        server = await asyncio.start_server(engine, "127.0.0.1", 0)
        wire = Wire(server.sockets[0].getsockname()[1])
        await wire.start(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
        far_reader, far_writer = await served.get()
        wire.cut((OUT,))
        writer.write(b"out")
        far_writer.write(b"in!")
        assert await reader.readexactly(3) == b"in!"
        waiting = asyncio.ensure_future(far_reader.readexactly(3))
        # A second message has come back meanwhile, so that the first had its time to get there.
        far_writer.write(b"in!")
        assert await reader.readexactly(3) == b"in!"
        assert not waiting.done()
        wire.mend()
        assert await waiting == b"out"
        wire.cut((IN,))
        writer.write(b"out")
        assert await far_reader.readexactly(3) == b"out"
        await wire.stop()
        server.close()

    asyncio.run(asyncio.wait_for(go(), 20))
