"""`tests/apt`: which failures of apt-get are tried again."""

import os
import subprocess

import pytest
from conftest import ROOT

LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"


@pytest.fixture
def apt(tmp_path):
    """Runs `tests/apt` over an apt-get that prints these lines as errors, one a try, then succeeds."""

    def run(*errors):
        script = ['#!/bin/sh', f'echo "$@" >>{tmp_path}/tries', f"case $(wc -l <{tmp_path}/tries) in"]
        script += [f"    {at}) echo '{line}' >&2; exit 100 ;;" for at, line in enumerate(errors, 1)]
        script += ["    *) echo done ;;", "esac"]
        (tmp_path / "apt-get").write_text("\n".join(script))
        (tmp_path / "apt-get").chmod(0o755)
        environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}", APT_RETRY_SECS="0")
        done = subprocess.run(
            [ROOT / "tests/apt", "install", "jq"], env=environment, capture_output=True, text=True
        )
        tries = (tmp_path / "tries").read_text().splitlines()
        assert all(line.endswith("install jq") for line in tries)
        return done, len(tries)

    return run


def test_a_lock_of_another_program_is_waited_for(apt):
    done, tries = apt(LOCKED, LOCKED)
    assert (done.returncode, done.stdout, tries) == (0, "done\n", 3)
    assert done.stderr.count("waiting") == 1 and LOCKED in done.stderr


def test_another_error_ends_at_once(apt):
    done, tries = apt(LOCKED, "E: Unable to locate package jq")
    assert (done.returncode, done.stdout, tries) == (100, "", 2)
    assert "Unable to locate package jq" in done.stderr


def test_success_is_not_repeated(apt):
    done, tries = apt()
    assert (done.returncode, done.stderr, tries) == (0, "", 1)
