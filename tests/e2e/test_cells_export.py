"""The export of a cluster with several cells becomes the content of another one."""

import shutil
import sys

import paho.mqtt.client as paho
import pytest

from broker import ROOT
from test_cells import BROKER, Client

sys.path.insert(0, str(ROOT / "tests/cluster"))

from lab import NODES, Lab  # noqa: E402
from test_cluster_engine import pytestmark  # noqa: E402, F401

CELLS = 3


class NamedLab(Lab):
    """A lab whose cluster has another name later on."""

    name = "lab"

    def broker_config(self, node):
        text = super().broker_config(node).replace('name = "lab"', f'name = "{self.name}"')
        return text + '[api]\nlisten = "http"\n'

    def data(self, node):
        return self.directory / f"node{node + 1}" / "data"

    def stop_brokers(self):
        for node in range(NODES):
            process = self.processes.pop(f"node{node + 1}")
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with NamedLab(tmp_path_factory.mktemp("export") / "lab", BROKER, shards=2, cells=CELLS) as lab:
        lab.start()
        yield lab


def done(ran):
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def refused(ran, *expected):
    assert ran.returncode == 1 and all(text in ran.stderr for text in expected), ran.stderr


def qos_2(client, topic, payload):
    sent = client.paho.publish(topic, payload, 2)
    sent.wait_for_publish(30)
    assert sent.is_published()


def test_an_export_of_all_cells_is_imported_into_another_cluster(lab, tmp_path):
    names = [f"kept-{number}" for number in range(4 * CELLS)]
    writer = Client(lab, 0, "writer", kept=True)
    for number, name in enumerate(names):
        one = Client(lab, number % NODES, name, kept=True, version=paho.MQTTv5)
        one.subscribe(f"to/{name}", 2)
        one.close()
        qos_2(writer, f"to/{name}", f"first {name}")
        writer.publish(f"keep/{name}", name, retain=True)
    # Owners of later epochs have given serials that the next cluster must not give again.
    lab.wait("an owner of each cell", lab.all_owners)
    done(lab.operate("drain", "node1"))
    lab.wait("an owner of each cell", lab.all_owners)
    for name in names:
        qos_2(writer, f"to/{name}", f"second {name}")
    writer.close()
    copy = tmp_path / "copy"
    assert f"exported to {copy}: {CELLS} cells" in done(lab.operate("export", copy))
    assert sorted(it.name for it in copy.iterdir()) == [
        "api.token", "cell-0", "cell-1", "cell-2", "cells.json",
    ]  # fmt: skip
    refused(lab.operate("import", copy), "nodes of the cluster run")
    token = (lab.data(0) / "api.token").read_text().split()[0]
    lab.stop_brokers()
    for node in range(NODES):
        shutil.rmtree(lab.data(node))
    lab.name = "restored"
    lab.cells = CELLS + 1
    lab.create()
    refused(lab.operate("import", copy), f"has {CELLS} cells, and the cluster was created with 4")
    lab.name, lab.cells = "again", CELLS
    lab.create()
    refused(lab.operate("import", copy / "cell-0"), "cells.json")
    assert "Start the nodes now" in done(lab.operate("import", copy))
    refused(lab.operate("import", copy), "imported into this cluster already")
    for node in range(NODES):
        lab.start_broker(node)
    lab.wait("the start of the cells", lab.all_owners)
    assert (lab.data(0) / "api.token").read_text().split()[0] == token
    writer = Client(lab, 1, "writer", kept=True)
    for name in names:
        qos_2(writer, f"to/{name}", f"third {name}")
    for number, name in enumerate(names):
        one = Client(lab, (number + 1) % NODES, name, kept=True)
        assert one.payloads(3) == [f"first {name}", f"second {name}", f"third {name}"]
        one.subscribe(f"keep/{name}")
        assert one.payloads(4)[3] == name
        one.close()
    writer.close()
