"""Commands and words that documents and alerts name exist, and those of the program are named."""

import re
import subprocess

import pytest

from broker import QUELEA, ROOT

PLACES = [
    *sorted((ROOT / "docs/use").glob("*.md")), *sorted((ROOT / "docs/tutorials").glob("*.md")),
    ROOT / "README.md", ROOT / "packaging/observability/quelea.rules.yml",
    ROOT / "packaging/helm/quelea/templates/NOTES.txt",
]
# Options may stand between `ctl` and the command.
OPTIONS = r"(?: --(?:data|url|user|ca) \S+| --json)*"
COMMAND = re.compile(rf"quelea ctl{OPTIONS} ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
LISTED = re.compile(r"^  ([a-z][a-z-]*)", re.MULTILINE)


def subcommands(*words):
    """The commands below these words; none: it takes arguments."""
    run = [QUELEA, "ctl", *words, "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    section = re.search(r"^Commands:\n((?:  .*\n)+)", done.stdout, re.MULTILINE)
    return set(LISTED.findall(section[1])) - {"help"} if section else set()


def test_each_command_of_ctl_in_a_document_exists():
    below = {name: subcommands(name) for name in subcommands()}
    assert {"clients", "retained", "bridges"} <= set(below)
    unknown, count = [], 0
    for path in PLACES:
        for match in COMMAND.finditer(path.read_text()):
            first, second = match.groups()
            count += 1
            is_known = first in below and (
                not below[first] or second is None or second in below[first]
            )
            if not is_known:
                unknown.append(f"{path.name}: {match[0]}")
    assert count > 50
    assert unknown == []


@pytest.mark.parametrize("page", ["operations.md"])
def test_each_reason_of_an_end_is_explained(page):
    source = (ROOT / "crates/core/broker/src/words/event.rs").read_text()
    body = re.search(r"fn word\(&self\).*?\n    }\n", source, re.DOTALL)[0]
    words = re.findall(r'"([a-z_]+)"', body)
    assert len(words) > 10
    text = (ROOT / "docs/use" / page).read_text()
    assert [word for word in words if f"`{word}`" not in text] == []
