#!/usr/bin/env python3
"""Builds the Debian packages `quelea` and `quelea-flock` from programs that are built already.

`packaging/deb.py --binaries target/release --out target/release-files`. `dpkg-deb` makes the
packages, so that neither root nor a source package is needed. Manual pages and completions come
from the programs; `--pages-from` names others if these do not run on this machine.
"""

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
from email.utils import formatdate
from pathlib import Path

import licences
from common import OUT, PROGRAMS, ROOT, epoch, is_static, machine, metadata, output
from common import package_version, pages, strip

HERE = Path(__file__).resolve().parent / "deb"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/{}",
    "zsh": "usr/share/zsh/vendor-completions/_{}",
    "fish": "usr/share/fish/vendor_completions.d/{}.fish",
}
# File of this folder, and where the package `quelea` has it.
FILES = {
    "quelea.toml": "etc/quelea/quelea.toml",
    "quelea.logrotate": "etc/logrotate.d/quelea",
    "quelea.service": "usr/lib/systemd/system/quelea.service",
    "quelea.sysusers": "usr/lib/sysusers.d/quelea.conf",
    "quelea.sysctl": "usr/lib/sysctl.d/10-quelea.conf",
}
SCRIPTS = ("postinst", "prerm", "postrm")
DESCRIPTIONS = {
    "quelea": (
        "MQTT broker for MQTT 3.1, 3.1.1 and 5",
        """Quelea stores sessions, their messages and retained messages durably: an
acknowledgement means that the message is on disk. It has TLS, WebSocket,
access rules, namespaces, limits for every resource, metrics for Prometheus
and a management API.
.
The package has the broker as a service, and its command-line tools.""",
    ),
    "quelea-flock": (
        "load generator for MQTT brokers that counts lost messages",
        """flock runs load scenarios against any MQTT broker, in its own format or in
that of HiveMQ Swarm, and has a catalogue of published benchmarks. It counts
lost, duplicated and reordered messages, and reports when a measurement is
not valid.""",
    ),
}
SYSUSERS = "systemd | systemd-standalone-sysusers | systemd-sysusers"


class Package:
    """A tree of files that becomes a package."""

    def __init__(self, name, version, tree):
        self.name = name
        self.version = version
        self.tree = tree

    def put(self, path, content, mode=0o644):
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(mode)

    def put_zipped(self, path, content):
        self.put(f"{path}.gz", gzip.compress(content.encode(), 9, mtime=0))

    def document(self, data, program):
        """Copyright, licences of libraries, and the two changelogs."""
        folder = f"usr/share/doc/{self.name}"
        copyright = (HERE / "copyright.in").read_text()
        self.put(f"{folder}/copyright", copyright.replace("@PACKAGE@", self.name))
        self.put_zipped(f"{folder}/third-party-licences.txt", licences.text(program, data))
        self.put_zipped(f"{folder}/changelog", (ROOT / "CHANGELOG.md").read_text())
        entry = (
            f"{self.name} ({self.version}) unstable; urgency=medium\n\n"
            "  * Built from the sources of this version: changelog.gz has the changes.\n\n"
            f" -- {maintainer()}  {formatdate(epoch())}\n"
        )
        self.put_zipped(f"{folder}/changelog.Debian", entry)

    def finish(self, binary, out, quick):
        """Writes the control files, and the package; its path."""
        control = self.tree / "DEBIAN"
        control.mkdir(exist_ok=True)
        files = sorted(p for p in self.tree.rglob("*") if p.is_file() and control not in p.parents)
        etc = self.tree / "etc"
        sums = [
            f"{hashlib.md5(file.read_bytes()).hexdigest()}  {file.relative_to(self.tree)}\n"
            for file in files
            if etc not in file.parents
        ]
        self.put("DEBIAN/md5sums", "".join(sums))
        conffiles = [f"/{f.relative_to(self.tree)}\n" for f in files if etc in f.parents]
        if conffiles:
            self.put("DEBIAN/conffiles", "".join(conffiles))
        self.put("DEBIAN/control", self.control(binary, files))
        for path in [self.tree, *self.tree.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
            os.utime(path, (epoch(), epoch()))
        package = out / f"{self.name}_{self.version}_{machine(binary)[1]}.deb"
        compression = ("-Zxz", "-z0") if quick else ("-Zxz",)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", *compression, "--build", str(self.tree), str(package)],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch())},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return package

    def control(self, binary, files):
        summary, text = DESCRIPTIONS[self.name]
        needs = libraries(binary)
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": machine(binary)[1],
            "Maintainer": maintainer(),
            "Installed-Size": str(sum(file.stat().st_size for file in files) // 1024 + 1),
            "Section": "net",
            "Priority": "optional",
        }
        if self.name == "quelea":
            needs.append(SYSUSERS)
            fields["Recommends"] = "ca-certificates"
            fields["Suggests"] = "logrotate, quelea-flock"
        if needs:
            fields["Depends"] = ", ".join(needs)
        lines = [f"{name}: {value}" for name, value in fields.items()]
        lines += [f"Description: {summary}", *(f" {line}" for line in text.splitlines())]
        return "\n".join(lines) + "\n"


def maintainer():
    name = os.environ.get("DEBFULLNAME", "Quelea maintainers")
    return f"{name} <{os.environ.get('DEBEMAIL', 'quelea@localhost')}>"


def libraries(binary):
    """The packages of the shared libraries that a program uses, with the oldest versions."""
    if is_static(binary):
        return []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "debian").mkdir()
        (Path(folder) / "debian/control").write_text("Source: quelea\n\nPackage: quelea\nArchitecture: any\n")
        found = subprocess.run(
            ["dpkg-shlibdeps", "-O", "-e", str(binary.resolve())],
            cwd=folder, stdout=subprocess.PIPE, text=True, check=True,
        ).stdout
    return found.strip().removeprefix("shlibs:Depends=").split(", ")


def build(program, binaries, pages_from, version, data, out, quick=False):
    """Builds the package of a program; its path."""
    name = PROGRAMS[program]
    binary = binaries / program
    with tempfile.TemporaryDirectory() as folder:
        package = Package(name, version, Path(folder) / name)
        target = package.tree / "usr/bin" / name
        target.parent.mkdir(parents=True)
        strip(binary, target)
        # Under the installed name, which the pages of flock show.
        source = target
        if pages_from != binaries:
            source = Path(folder) / "host" / name
            source.parent.mkdir()
            shutil.copy2(pages_from / program, source)
        for shell, path in COMPLETIONS.items():
            package.put(path.format(name), output(source, "completions", shell))
        with tempfile.TemporaryDirectory() as manual:
            output(source, "man", manual)
            others = {f"{other}.1" for other in PROGRAMS.values()} - {f"{name}.1"}
            for page in sorted(Path(manual).iterdir()):
                if page.name in others:  # that package has the page
                    continue
                package.put_zipped(f"usr/share/man/man1/{page.name}", page.read_text())
        package.document(data, program)
        if program == "quelea":
            for file, path in FILES.items():
                package.put(path, (HERE / file).read_bytes())
            for script in SCRIPTS:
                package.put(f"DEBIAN/{script}", (HERE / f"quelea.{script}").read_bytes(), 0o755)
            keys = (ROOT / "docs/use/quelea.reference.toml").read_text()
            package.put(f"usr/share/doc/{name}/quelea.reference.toml", keys)
            for page, text in pages().items():
                package.put(f"usr/share/doc/{name}/{page}", text)
        overrides = HERE / f"{name}.lintian-overrides"
        if overrides.exists():
            package.put(f"usr/share/lintian/overrides/{name}", overrides.read_bytes())
        return package.finish(target, out, quick)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=Path, default=ROOT / "target/release")
    parser.add_argument("--pages-from", type=Path, help="folder of programs for this machine")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--version", help="of the packages, instead of that of the sources")
    parser.add_argument("--only", choices=list(PROGRAMS), help="build one package only")
    parser.add_argument("--quick", action="store_true", help="compress little, for tests")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    data = metadata()
    version = args.version or f"{package_version()}-1"
    for program in [args.only] if args.only else PROGRAMS:
        pages = args.pages_from or args.binaries
        folders = (args.binaries.resolve(), pages.resolve())
        print(build(program, *folders, version, data, args.out, args.quick))


if __name__ == "__main__":
    main()
