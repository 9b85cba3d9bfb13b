"""The container image: its format, and its program in a root directory made of its layers."""

import hashlib
import io
import json
import shutil
import tarfile

import pytest
import yaml

from conftest import BINARIES, ROOT, script
from machine import Machine

USER = 10001


class Image:
    def __init__(self, path):
        with tarfile.open(path) as tar:
            self.files = {
                member.name: tar.extractfile(member).read() for member in tar if member.isfile()
            }
        (self.manifest,) = self.json("index.json")["manifests"]
        self.content = self.blob(self.manifest)
        self.config = self.blob(self.content["config"])

    def json(self, name):
        return json.loads(self.files[name])

    def bytes_of(self, descriptor):
        content = self.files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
        assert len(content) == descriptor["size"]
        assert hashlib.sha256(content).hexdigest() == descriptor["digest"].split(":")[1]
        return content

    def blob(self, descriptor):
        return json.loads(self.bytes_of(descriptor))

    def layers(self):
        for descriptor in self.content["layers"]:
            yield tarfile.open(fileobj=io.BytesIO(self.bytes_of(descriptor)), mode="r:gz")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    out = tmp_path_factory.mktemp("image")
    return Image(script("image.py", "--binary", BINARIES / "quelea", "--out", out).strip())


@pytest.fixture
def container(image, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for layer in image.layers():
        layer.extractall(root, numeric_owner=True, filter="fully_trusted")
    yield root
    shutil.rmtree(root)


def test_digests_and_both_formats_agree(image):
    assert image.json("oci-layout") == {"imageLayoutVersion": "1.0.0"}
    (older,) = image.json("manifest.json")
    assert older["Config"].split("/")[-1] == image.content["config"]["digest"].split(":")[1]
    ids = []
    for layer, name in zip(image.content["layers"], older["Layers"], strict=True):
        assert name.split("/")[-1] == layer["digest"].split(":")[1]
        with tarfile.open(fileobj=io.BytesIO(image.bytes_of(layer)), mode="r:gz") as tar:
            tar.fileobj.seek(0)
            ids.append("sha256:" + hashlib.sha256(tar.fileobj.read()).hexdigest())
    assert image.config["rootfs"]["diff_ids"] == ids
    assert all(":" in tag and "~" not in tag for tag in older["RepoTags"])


def test_the_configuration_of_the_image(image):
    assert image.config["architecture"] in ("amd64", "arm64") and image.config["os"] == "linux"
    config = image.config["config"]
    assert config["User"] == f"{USER}:{USER}"
    assert "/var/lib/quelea" in config["Volumes"] and "1883/tcp" in config["ExposedPorts"]
    assert config["Healthcheck"]["Test"][1:3] == ["/usr/bin/quelea", "health"]
    labels = config["Labels"]
    number = labels["org.opencontainers.image.version"]
    assert number.startswith(version()) and len(labels["org.opencontainers.image.revision"]) >= 40


def version():
    from common import version

    return version()


def test_the_image_has_no_shell_and_one_writable_place(image, container):
    assert not (container / "bin").exists() and not (container / "usr/bin/sh").exists()
    owned = [path for path in container.rglob("*") if path.lstat().st_uid == USER]
    assert {str(path.relative_to(container)) for path in owned} == {
        "var/lib/quelea",
        "var/lib/quelea/passwords",
    }
    bundle = (container / "etc/ssl/certs/ca-certificates.crt").read_text()
    assert bundle.count("BEGIN CERTIFICATE") > 50
    assert (container / "var/lib/dpkg/status.d/ca-certificates").exists()


def test_the_broker_of_the_image_admits_users_only(image, container):
    config = image.config["config"]
    environment = dict(one.split("=", 1) for one in config["Env"])
    entry, command = config["Entrypoint"], config["Cmd"]
    assert entry == ["/usr/bin/quelea"] and command[0] == "serve"
    broker = Machine(container, f"{USER}:{USER}", *command[1:], environment=environment)
    refused = broker.attempt("pub", "-t", "a", "-m", "x")
    assert refused.returncode != 0 and "0x8" in refused.stderr, refused.stderr
    broker.client("passwd", "-b", "/var/lib/quelea/passwords", "anna", "secret")
    broker.reload()
    login = ["-u", "anna", "-P", "secret"]
    broker.client("pub", *login, "-t", "a", "-m", "x", "-q", "1", "-r")
    assert broker.client("sub", *login, "-t", "a", "-C", "1") == "x\n"
    check = config["Healthcheck"]["Test"][2:]
    assert broker.attempt(*check).returncode == 0
    assert broker.stop() == 0
    again = Machine(container, f"{USER}:{USER}", *command[1:], environment=environment)
    assert again.client("sub", *login, "-t", "a", "-C", "1") == "x\n"
    assert again.stop() == 0


def test_two_builds_give_the_same_bytes(image, tmp_path):
    second = script("image.py", "--binary", BINARIES / "quelea", "--out", tmp_path).strip()
    again = Image(second)
    assert again.manifest["digest"] == image.manifest["digest"]


def test_the_compose_file_names_what_the_image_has(image):
    service = yaml.safe_load((ROOT / "packaging/compose.yaml").read_text())["services"]["quelea"]
    config = image.config["config"]
    for volume in service["volumes"]:
        target = volume.split(":")[1]
        assert target in config["Volumes"] or target.startswith("/etc/quelea"), volume
    for port in service["ports"]:
        assert f"{str(port).split(':')[-1]}/tcp" in config["ExposedPorts"], port
    assert "healthcheck" not in service, "the image has one"
