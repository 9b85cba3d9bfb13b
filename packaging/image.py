#!/usr/bin/env python3
"""Writes a container image as one file that `docker load` and `podman load` read.

`packaging/image.py --binary target/release/quelea --out target/release-files`. It needs neither
root nor a daemon. The file is an OCI layout, with a `manifest.json` for older versions of Docker.
The image has the program, the certificates of authorities and, unless the program is static, the C
library of this machine's Debian. It has no shell and no package manager.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

import licences
from common import OUT, ROOT, commit, epoch, is_static, machine, package_version, strip

USER = 10001
DATA = "var/lib/quelea"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
# What of the packages goes into the image: libraries, and copyright files.
LIBRARIES = re.compile(
    r"(usr/)?lib(64)?/([a-z0-9_]+-linux-gnu/)?"
    r"(ld-linux[^/]*|lib(c|m|gcc_s|resolv|nss_dns|nss_files)\.so\.[0-9]+)$"
)
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nquelea:x:{USER}:{USER}::/{DATA}:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nquelea:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


class Layer:
    """Files of a layer; `blob` gives its bytes, the same for the same files."""

    def __init__(self):
        self.entries = {}

    def directory(self, path, mode=0o755, owner=0):
        self._parents(path)
        self._add(path, tarfile.DIRTYPE, b"", mode, owner)

    def file(self, path, content, mode=0o644, owner=0):
        self._parents(path)
        content = content.encode() if isinstance(content, str) else content
        self._add(path, tarfile.REGTYPE, content, mode, owner)

    def link(self, path, target):
        self._parents(path)
        self._add(path, tarfile.SYMTYPE, b"", 0o777, 0, target)

    def _parents(self, path):
        for parent in reversed(Path(path).parents[:-1]):
            if str(parent) not in self.entries:
                self._add(str(parent), tarfile.DIRTYPE, b"", 0o755, 0)

    def _add(self, path, kind, content, mode, owner, target=""):
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(content), target
        info.uid = info.gid = owner
        info.mtime = epoch()
        self.entries[path] = (info, content)

    def tar(self):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for _, (info, content) in sorted(self.entries.items()):
                tar.addfile(info, io.BytesIO(content))
        return buffer.getvalue()


def download(package, into):
    """Unpacks a package of this machine's Debian: no root, no installation."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package],
            cwd=folder,
            check=True,
        )
        file = next(Path(folder).glob("*.deb"))
        subprocess.run(["dpkg-deb", "--extract", file, into], check=True)
        control = subprocess.run(
            ["dpkg-deb", "--field", file], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    return control


def base(static):
    """The layer below the program: accounts, certificates, and the C library it needs."""
    layer = Layer()
    for path, content in ACCOUNTS.items():
        layer.file(path, content)
    layer.directory("tmp", 0o1777)
    packages = ["ca-certificates"] if static else ["ca-certificates", "libc6", "libgcc-s1"]
    with tempfile.TemporaryDirectory() as folder:
        for package in packages:
            # Scanners find the packages of an image by these files.
            layer.file(f"var/lib/dpkg/status.d/{package}", download(package, folder))
        root = Path(folder)
        authorities = sorted(root.glob("usr/share/ca-certificates/mozilla/*.crt"))
        layer.file(CERTIFICATES, "".join(file.read_text() for file in authorities))
        for package in packages:
            texts = root / f"usr/share/doc/{package}"
            if texts.is_symlink():  # to those of a package that it depends on
                download(texts.readlink().name, folder)
            layer.file(f"usr/share/doc/{package}/copyright", (texts / "copyright").read_bytes())
        for file in sorted(root.rglob("*")):
            path = str(file.relative_to(root))
            if static or not LIBRARIES.fullmatch(path):
                continue
            if file.is_symlink():
                layer.link(path, str(file.readlink()))
            else:
                layer.file(path, file.read_bytes(), file.stat().st_mode & 0o777)
    return layer


def program(binary):
    layer = Layer()
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder) / "quelea"
        strip(binary, stripped)
        layer.file("usr/bin/quelea", stripped.read_bytes(), 0o755)
    layer.file("etc/quelea/quelea.toml", (ROOT / "packaging/image/quelea.toml").read_bytes())
    layer.file("usr/share/doc/quelea/LICENSE", (ROOT / "LICENSE").read_bytes())
    layer.file("usr/share/doc/quelea/third-party-licences.txt", licences.text("quelea"))
    # A new volume is a copy of this directory, with its owner.
    layer.directory(DATA, 0o700, USER)
    layer.file(f"{DATA}/passwords", b"", 0o600, USER)
    return layer


def configuration(architecture, version, layers):
    created = datetime.datetime.fromtimestamp(epoch(), datetime.UTC).isoformat()
    return {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/quelea"],
            "Cmd": ["serve", "--config", "/etc/quelea/quelea.toml"],
            "WorkingDir": f"/{DATA}",
            "ExposedPorts": {"1883/tcp": {}, "8883/tcp": {}, "9883/tcp": {}},
            "Volumes": {f"/{DATA}": {}},
            "StopSignal": "SIGTERM",
            # Docker's addition to the format of OCI. Times are nanoseconds.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/quelea", "health", "--config", "/etc/quelea/quelea.toml"],
                "Interval": 30 * 10**9,
                "Timeout": 10 * 10**9,
                "StartPeriod": 60 * 10**9,
                "Retries": 3,
            },
            "Labels": {
                "org.opencontainers.image.title": "quelea",
                "org.opencontainers.image.description": "MQTT broker for MQTT 3.1, 3.1.1 and 5",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.revision": commit(),
                "org.opencontainers.image.licenses": "Apache-2.0",
                "org.opencontainers.image.created": created,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        "history": [
            {"created": created, "created_by": "packaging/image.py", "comment": comment}
            for comment in ("certificates and libraries", "quelea")
        ],
    }


def digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob(digest):
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def write(binary, version, out):
    """Writes the image; its path."""
    architecture = machine(binary)[1]
    tars = [layer.tar() for layer in (base(is_static(binary)), program(binary))]
    config = json.dumps(configuration(architecture, version, tars), indent=1).encode()
    zipped = [gzip.compress(tar, 6, mtime=0) for tar in tars]
    kind = "application/vnd.oci.image"

    def descriptor(media, content):
        return {"mediaType": media, "digest": digest(content), "size": len(content)}

    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": descriptor(f"{kind}.config.v1+json", config),
            "layers": [descriptor(f"{kind}.layer.v1.tar+gzip", layer) for layer in zipped],
        }
    ).encode()
    # Tags may not have a tilde.
    tag = version.replace("~", "-").replace("+", "-")
    image = descriptor(f"{kind}.manifest.v1+json", manifest)
    image["platform"] = {"architecture": architecture, "os": "linux"}
    image["annotations"] = {
        "io.containerd.image.name": f"docker.io/library/quelea:{tag}",
        "org.opencontainers.image.ref.name": tag,
    }
    index = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.index.v1+json",
        "manifests": [image],
    }
    older = [
        {
            "Config": blob(digest(config)),
            "RepoTags": [f"quelea:{tag}"],
            "Layers": [blob(digest(layer)) for layer in zipped],
        }
    ]
    files = Layer()
    files.file("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
    files.file("index.json", json.dumps(index))
    files.file("manifest.json", json.dumps(older))
    for content in (config, manifest, *zipped):
        files.file(blob(digest(content)), content)
    path = out / f"quelea-{version}-{architecture}.image.tar"
    path.write_bytes(files.tar())
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/quelea")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print(write(args.binary, package_version(), args.out))


if __name__ == "__main__":
    main()
