"""The instruction guard: what it counts, and when it fails."""

import instructions
import pytest

PROFILE = """\
events: Ir

ob=/repo/instructions
fl=a.rs
fn=work
10 100
+2 7
cob=/lib/libc.so.6
cfn=memcpy
calls=3 0x10
12 900
13 5

ob=/lib/libc.so.6
fn=memcpy
1 900
"""


def test_only_the_binary_itself_is_counted_and_no_callee_twice():
    assert instructions.instructions_of(PROFILE, "/repo/instructions") == 112
    assert instructions.instructions_of(PROFILE, "/lib/libc.so.6") == 900


def test_a_binary_that_is_not_in_the_profile_does_not_count_as_free():
    with pytest.raises(ValueError, match="/elsewhere/instructions"):
        instructions.instructions_of(PROFILE, "/elsewhere/instructions")


def baseline_with(**changes):
    return {work.key: 1000 for work in instructions.WORKS} | changes


def test_a_work_may_cost_three_per_cent_more():
    lines, within, beyond = instructions.compare(baseline_with(decode=1030), baseline_with())
    assert (within, beyond) == (len(instructions.WORKS), 0)
    assert not any(line.startswith("FAILED") for line in lines)


def test_a_work_that_costs_more_than_that_fails_by_name():
    lines, within, beyond = instructions.compare(baseline_with(encode=1031), baseline_with())
    assert (within, beyond) == (len(instructions.WORKS) - 1, 1)
    assert [line for line in lines if line.startswith("FAILED encode: 1,031")]


def test_a_gain_passes_and_asks_to_be_kept():
    lines, _, beyond = instructions.compare(baseline_with(decode=900), baseline_with())
    assert beyond == 0
    assert [line for line in lines if "decode" in line and "bless it" in line]


def test_a_work_without_a_baseline_fails():
    baseline = baseline_with()
    del baseline["decode"]
    assert instructions.compare(baseline_with(), baseline)[2] == 1


def test_the_committed_baseline_has_every_work():
    lines, _, beyond = instructions.compare(
        baseline_with(), instructions.json.loads(instructions.BASELINE.read_text())["instructions"]
    )
    assert not any("does not know it" in line for line in lines), beyond


def test_each_work_has_a_name_of_its_own():
    assert len({work.key for work in instructions.WORKS}) == len(instructions.WORKS)
