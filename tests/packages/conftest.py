"""Packages made of the programs that the suite `build` leaves, and a clean Debian to install them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("QUELEA_BIN", ROOT / "target/debug/quelea")).resolve().parent
CLEAN_ROOT = ROOT / "target/packages/root.tar"
sys.path[:0] = [str(ROOT / "packaging"), str(ROOT / "tests/e2e")]


def run(*command, **options):
    """Runs a command that has to succeed; what it prints."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
    done = subprocess.run(list(map(str, command)), **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr or ''}"
    return done.stdout


def script(name, *arguments):
    command = [sys.executable, ROOT / "packaging" / name, *arguments]
    return run(*command, stderr=subprocess.PIPE)


@pytest.fixture(scope="session")
def debs(tmp_path_factory):
    """The packages `quelea` and `quelea-flock`, by name."""
    out = tmp_path_factory.mktemp("debs")
    script("deb.py", "--quick", "--binaries", BINARIES, "--out", out, "--version", "2.0-1")
    return {file.name.split("_")[0]: file for file in out.glob("*.deb")}


@pytest.fixture
def bare_root(tmp_path):
    """A directory with a fresh Debian of this machine's release, without devices."""
    root = tmp_path / "root"
    root.mkdir()
    run("tar", "--extract", "--file", CLEAN_ROOT, "--directory", root, "--exclude=./dev/*")
    yield root
    shutil.rmtree(root)


@pytest.fixture
def clean_root(bare_root):
    """The same, to change the root directory to."""
    # Device nodes may be forbidden in here; programs only need these two.
    for name in ("null", "urandom"):
        (bare_root / "dev" / name).write_bytes(b"")
        run("mount", "--bind", f"/dev/{name}", bare_root / "dev" / name)
    yield bare_root
    for name in ("null", "urandom"):
        run("umount", bare_root / "dev" / name)
