"""A copy of the broker's program that says another version, and is the same in all else."""

import re
import subprocess

# The text of the version where it is data, and where the compiler has put it into instructions: the
# store of its first four bytes, and the store of its fifth near by.
TAIL = rb"\xc6[\x40-\x47]\x04%b"
NEAR = rb".{0,8}?"


def version_of(program):
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return told.stdout.split()[1]


def another_version(program, path):
    """Writes the copy to `path`; the version that it says."""
    own = version_of(program)
    at = max(place for place, letter in enumerate(own[:4]) if letter.isdigit())
    other = own[:at] + ("9" if own[at] != "9" else "8") + own[at + 1 :]
    content = patched(program.read_bytes(), own.encode(), other.encode())
    path.write_bytes(content)
    path.chmod(0o755)
    assert version_of(path) == other, f"{path} says version {version_of(path)}, not {other}"
    return other


def patched(content, own, other):
    whole = re.compile(rb"(?<![0-9.])%b(?![0-9.])" % re.escape(own))
    content = whole.sub(other, content)
    head, tail = re.escape(own[:4]), TAIL % re.escape(own[4:5])
    before = re.compile(rb"(%b%b)%b" % (tail, NEAR, head), re.DOTALL)
    behind = re.compile(rb"%b(%b%b)" % (head, NEAR, tail), re.DOTALL)
    content = before.sub(lambda found: found[1] + other[:4], content)
    return behind.sub(lambda found: other[:4] + found[1], content)
