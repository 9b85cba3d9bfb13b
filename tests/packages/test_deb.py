"""The Debian packages: installed, upgraded, removed and purged on a clean Debian; lintian."""

import re
import shutil
import stat
import subprocess

import pytest

from conftest import BINARIES, ROOT, run
from machine import Machine

CONFIG = "etc/quelea/quelea.toml"
CHANGED = "# Of the administrator.\n[server]\ndata_dir = \"/var/lib/quelea\"\n"


def chroot(root, *command):
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C",
    }
    return run("/usr/sbin/chroot", root, *command, env=environment, stdin=subprocess.DEVNULL)


def install(root, package, *options):
    shutil.copy(package, root / "tmp")
    return chroot(root, "dpkg", *options, "--install", f"/tmp/{package.name}")


def owner(root, path):
    return chroot(root, "stat", "--format=%U:%G %a", path).strip()


def older(package, into):
    """The same package as an earlier version, with another configuration."""
    tree = into / "older"
    run("dpkg-deb", "--raw-extract", package, tree)
    control = (tree / "DEBIAN/control").read_text()
    (tree / "DEBIAN/control").write_text(control.replace("Version: 2.0-1", "Version: 1.0-1"))
    config = tree / CONFIG
    config.write_text("# Of version 1.\n" + config.read_text())
    path = into / "quelea_1.0-1.deb"
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, path)
    return path


def serve(root):
    return Machine(root, "quelea:quelea", "--config", f"/{CONFIG}")


def test_a_new_installation_serves_this_machine(debs, clean_root):
    install(clean_root, debs["quelea"])
    assert owner(clean_root, "/etc/quelea") == "root:quelea 750"
    assert owner(clean_root, "/var/lib/quelea") == "quelea:quelea 700"
    assert owner(clean_root, f"/{CONFIG}") == "root:root 644"
    shell = chroot(clean_root, "getent", "passwd", "quelea").strip().split(":")[-1]
    assert shell.endswith("nologin")
    wanted = clean_root / "etc/systemd/system/multi-user.target.wants/quelea.service"
    assert wanted.is_symlink(), "the service starts with the machine"
    broker = serve(clean_root)
    broker.client("pub", "-t", "home/lamp", "-m", "on", "-q", "1", "-r")
    assert broker.client("sub", "-t", "home/#", "-C", "1", "-v") == "home/lamp on\n"
    listening = {line for line in broker.log if '"listening"' in line}
    assert listening and all("127.0.0.1" in line or "[::1]" in line for line in listening)
    assert broker.stop() == 0


def test_an_upgrade_keeps_data_and_a_changed_configuration(debs, clean_root, tmp_path):
    install(clean_root, older(debs["quelea"], tmp_path))
    (clean_root / CONFIG).write_text(CHANGED)
    session = ["-t", "jobs", "-i", "worker", "-c", "-q", "1"]
    broker = serve(clean_root)
    broker.client("sub", *session, "-E")
    broker.client("pub", "-t", "jobs", "-m", "before the upgrade", "-q", "1")
    assert broker.stop() == 0

    install(clean_root, debs["quelea"], "--force-confdef", "--force-confold")
    assert (clean_root / CONFIG).read_text() == CHANGED
    assert (clean_root / f"{CONFIG}.dpkg-dist").exists(), "the new one is beside it"
    assert "Version: 2.0-1" in chroot(clean_root, "dpkg", "--status", "quelea")
    broker = serve(clean_root)
    assert broker.client("sub", *session, "-C", "1") == "before the upgrade\n"
    assert broker.stop() == 0


def test_an_unchanged_configuration_follows_the_package(debs, clean_root, tmp_path):
    install(clean_root, older(debs["quelea"], tmp_path))
    install(clean_root, debs["quelea"])
    assert "Of version 1" not in (clean_root / CONFIG).read_text()
    assert not (clean_root / f"{CONFIG}.dpkg-dist").exists()


def test_remove_keeps_data_and_purge_deletes_it(debs, clean_root):
    install(clean_root, debs["quelea"])
    data, logs = clean_root / "var/lib/quelea", clean_root / "var/log/quelea"
    (data / "file").write_text("data")
    logs.mkdir()
    passwords = clean_root / "etc/quelea/passwords"
    passwords.write_text("of the administrator")

    chroot(clean_root, "dpkg", "--remove", "quelea")
    assert not (clean_root / "usr/bin/quelea").exists()
    assert (data / "file").exists() and (clean_root / CONFIG).exists()
    install(clean_root, debs["quelea"])
    assert (data / "file").read_text() == "data"

    chroot(clean_root, "dpkg", "--purge", "quelea")
    assert not data.exists() and not logs.exists() and not (clean_root / CONFIG).exists()
    assert passwords.exists(), "files that no package made are the administrator's"
    left = [path for path in (clean_root / "etc/systemd").rglob("*quelea*")]
    assert left == []
    chroot(clean_root, "getent", "passwd", "quelea")


def test_owners_that_the_administrator_chose_remain(debs, clean_root):
    chroot(clean_root, "groupadd", "operators")
    (clean_root / "etc/quelea").mkdir()
    (clean_root / "var/lib/quelea").mkdir()
    chroot(clean_root, "chgrp", "operators", "/var/lib/quelea")
    chroot(
        clean_root, "dpkg-statoverride", "--update", "--add", "root", "operators", "0755", "/etc/quelea"
    )
    install(clean_root, debs["quelea"])
    assert owner(clean_root, "/etc/quelea") == "root:operators 755"
    assert owner(clean_root, "/var/lib/quelea") == "root:operators 755"


def test_both_packages_fit_together(debs, clean_root):
    for package in debs.values():
        install(clean_root, package)
    assert "MB-B1" in chroot(clean_root, "quelea", "flock", "list")
    completion = clean_root / "usr/share/bash-completion/completions/quelea-flock"
    assert "default quelea-flock" in completion.read_text()
    for page in ("quelea.1", "quelea-serve.1", "quelea-flock.1", "quelea-flock-run.1"):
        assert (clean_root / f"usr/share/man/man1/{page}.gz").exists() or excluded(clean_root), page


def excluded(root):
    """Some images of Debian install no manual pages."""
    return any("path-exclude" in f.read_text() for f in (root / "etc/dpkg/dpkg.cfg.d").glob("*"))


def test_the_unit_is_valid_and_confined(tmp_path):
    unit = ROOT / "packaging/deb/quelea.service"
    run("systemd-analyze", "security", "--offline=yes", "--threshold=30", unit)
    # The program of the unit need not be installed here.
    copy = tmp_path / "quelea.service"
    copy.write_text(re.sub(r"ExecStart=/usr/bin/quelea\b", "ExecStart=/bin/true", unit.read_text()))
    report = run("systemd-analyze", "verify", "--man=no", copy)
    assert "quelea.service" not in report, report


@pytest.mark.parametrize("name", ["quelea", "quelea-flock"])
def test_lintian_finds_nothing(debs, name):
    report = run(
        "lintian", "--allow-root", "--tag-display-limit=0", "--display-info", "--fail-on=error,warning,info",
        debs[name],
    )
    assert not re.search(r"^[EWI]:", report, re.MULTILINE), report


def test_a_package_has_the_version_and_licences_of_its_programs(debs, clean_root):
    fields = run("dpkg-deb", "--field", debs["quelea"])
    assert "Version: 2.0-1" in fields and re.search(r"Depends: .*libc6 \(>= 2\.", fields)
    run("dpkg-deb", "--extract", debs["quelea"], clean_root)
    program = clean_root / "usr/bin/quelea"
    assert stat.S_IMODE(program.stat().st_mode) == 0o755
    number = run(BINARIES / "quelea", "--version").split()[1]
    assert number in chroot(clean_root, "quelea", "--version")
    pages = clean_root / "usr/share/doc/quelea/docs/use"
    linked = re.findall(r"\]\(([^)#:]+)[#)]", (pages / "operations.md").read_text())
    assert linked and all((pages / link).exists() for link in linked), linked
    texts = run("zcat", clean_root / "usr/share/doc/quelea/third-party-licences.txt.gz")
    assert "rustls 0." in texts and "Permission is hereby granted" in texts
