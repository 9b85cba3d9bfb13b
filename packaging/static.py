#!/usr/bin/env python3
"""Builds programs that need no shared library, for x86-64 and arm64, with the C library musl.

`packaging/static.py [--profile release] [TARGET...]`. zig compiles the C parts; it comes from PyPI
into `target/zig`. `rustup` installs Rust's standard library of the target. The programs are in
`target/TARGET/PROFILE`. At the end each broker has to deliver a message: on the processor of
another machine by qemu (Debian's `qemu-user-static`), without which it is not run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

from common import PROGRAMS, ROOT, is_static, machine

TARGETS = ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
TOOLS = ("cargo-zigbuild==0.24.1", "ziglang==0.17.1")
# Until the broker is ready, and until a message has come. Emulated, all is ten times as slow.
START_SECS = 120
VENV = ROOT / "target/zig"


def install():
    stamp = VENV / "installed"
    if stamp.exists() and stamp.read_text() == " ".join(TOOLS):
        return
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip = [VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *TOOLS], check=True)
    stamp.write_text(" ".join(TOOLS))


def build(target, profile):
    """The folder of the programs."""
    install()
    subprocess.run(["rustup", "target", "add", target], cwd=ROOT, check=True)
    packages = [word for program in PROGRAMS for word in ("-p", program)]
    subprocess.run(
        ["cargo", "zigbuild", "--locked", "--profile", profile, "--bins", "--target", target, *packages],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}"},
        check=True,
    )
    folder = ROOT / "target" / target / ("debug" if profile == "dev" else profile)
    for program in PROGRAMS:
        if not is_static(folder / program):
            raise SystemExit(f"{folder / program} needs shared libraries")
    try_out(folder / "quelea")
    return folder


def try_out(program):
    """Starts the broker, publishes and subscribes, all with this program."""
    command, processor = [program], machine(program)[0]
    if processor != os.uname().machine:
        emulator = shutil.which(f"qemu-{processor}-static") or shutil.which(f"qemu-{processor}")
        if emulator is None:
            print(f"static: no qemu for {processor}, so {program} is not run", file=sys.stderr)
            return
        command = [emulator, program]
    with tempfile.TemporaryDirectory() as data:
        serve = ["serve", "--port", "0", "--data", data, "--log-format", "json"]
        broker = subprocess.Popen([*command, *serve], stderr=subprocess.PIPE, text=True)
        # One that hangs is stopped, which ends its log as well.
        alarm = threading.Timer(START_SECS, broker.kill)
        alarm.start()
        try:
            log, port = [], None
            for line in broker.stderr:
                log.append(line)
                url = json.loads(line).get("url", "")
                if url.startswith("tcp://127.0.0.1:"):
                    port = url.rsplit(":", 1)[1]
                if '"ready"' in line:
                    break
            else:
                raise SystemExit(f"{program} does not start:\n{''.join(log)}")
            to = ["-h", "127.0.0.1", "-p", port, "-t", "static"]
            subprocess.run([*command, "pub", *to, "-m", "on", "-q", "1", "-r"], check=True)
            got = subprocess.run(
                [*command, "sub", *to, "-C", "1"], stdout=subprocess.PIPE, text=True, check=True,
                timeout=START_SECS,
            )
            if got.stdout != "on\n":
                raise SystemExit(f"{program} delivers {got.stdout!r} instead of 'on'")
        finally:
            alarm.cancel()
            broker.kill()
            broker.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="release")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    args = parser.parse_args()
    for target in args.targets or TARGETS:
        print(build(target, args.profile))


if __name__ == "__main__":
    main()
