"""A draft of a release: all artefacts carry the version, checksums hold, bills are valid."""

import hashlib
import json
import re
import tarfile

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from conftest import BINARIES, ROOT, run, script


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    out = tmp_path_factory.mktemp("release")
    script("release.py", "--draft", "--quick", "--programs", BINARIES, "--out", out)
    return out


def test_every_artefact_has_the_version_and_a_checksum(release):
    from common import version

    sums = dict(reversed(line.split()) for line in (release / "SHA256SUMS").read_text().splitlines())
    files = {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    assert sums.keys() == files
    for name, digest in sums.items():
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest
        assert re.search(rf"[-_]{re.escape(version())}[~.\-_]", name), name
    endings = [".deb", ".deb", ".image.tar", ".tar.gz", ".tar.gz", ".cdx.json", ".cdx.json"]
    if (ROOT / "target/helm/helm").exists():
        endings.append(".tgz")
    found = [re.search(r"\.(deb|image\.tar|tar\.gz|cdx\.json|tgz)$", name)[0] for name in files]
    assert sorted(found) == sorted(endings)


def test_an_archive_has_what_belongs_to_the_program(release):
    (path,) = release.glob("quelea-flock-*.tar.gz")
    with tarfile.open(path) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
        owners = {(member.uid, member.uname) for member in tar}
    assert owners == {(0, "root")}
    wanted = {"quelea-flock", "LICENSE", "THIRD-PARTY-LICENCES", "man1/quelea-flock-run.1"}
    assert wanted | {"completions/quelea-flock.bash"} <= names
    (path,) = release.glob("quelea-[0-9]*.tar.gz")
    with tarfile.open(path) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    assert {"docs/use/configuration.md", "packaging/deb/quelea.service"} <= names


@pytest.mark.parametrize("name", ["quelea-0", "quelea-flock-0"])
def test_a_bill_lists_what_is_linked(release, name):
    (path,) = release.glob(f"{name}*.cdx.json")
    faults = JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text())
    assert faults is None, faults
    bill = json.loads(path.read_text())
    names = {component["name"] for component in bill["components"]}
    assert {"rustls", "clap"} <= names
    assert not names & {"proptest", "syn"}, "neither tests nor macros are linked"
    foreign = [component for component in bill["components"] if "purl" in component]
    assert len(foreign) > 50 and all("hashes" in component for component in foreign)
    references = {component["bom-ref"] for component in bill["components"]}
    references.add(bill["metadata"]["component"]["bom-ref"])
    for entry in bill["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= references


def test_a_release_of_an_unfinished_version_is_refused(tmp_path):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, ROOT / "packaging/release.py", "--programs", BINARIES, "--out", tmp_path],
        capture_output=True, text=True, check=False,
    )
    heading = next(
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    )
    clean = not run("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no").strip()
    if clean and re.search(r"\d{4}-\d{2}-\d{2}", heading):
        pytest.skip("this is a release")
    assert done.returncode == 1 and "release:" in done.stderr
    assert list(tmp_path.iterdir()) == []
