"""The Helm chart on the control plane of a real Kubernetes: without nodes, so no container starts.

`make chart` builds it (`tests/kubernetes`) and runs this file; elsewhere it is skipped.
"""

import json
import ssl
import subprocess
import sys
import urllib.request

import pytest

from broker import eventually
from conftest import ROOT, run
from test_helm import CHART, CLUSTER, EVERYTHING, HELM

sys.path.insert(0, str(ROOT / "tests"))

from ports import free_ports  # noqa: E402

KUBERNETES = ROOT / "target/kubernetes/kubernetes"
# Its kind is of the Prometheus Operator, which is not there.
WITHOUT_OPERATOR = ["serviceMonitor.enabled=false"]

pytestmark = pytest.mark.skipif(
    not (KUBERNETES.exists() and HELM.exists()), reason="no Kubernetes, or no Helm: make chart"
)


class ControlPlane:
    """etcd, the API server and the controllers, on loopback."""

    def __init__(self, folder):
        self.folder, self.children = folder, []
        client, peer, secure = free_ports(3)
        etcd, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self.url = f"https://127.0.0.1:{secure}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {
                "server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "it", "user": {"token": "root"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }))  # fmt: skip
        (folder / "tokens").write_text("root,root,1,system:masters\n")
        run("openssl", "genrsa", "-out", folder / "key", "2048")
        run("openssl", "rsa", "-in", folder / "key", "-pubout", "-out", folder / "public")
        self.start(
            "etcd", "--data-dir", folder / "data", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peers,
            "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
        )  # fmt: skip
        self.start(
            "kube-apiserver", "--etcd-servers", etcd, "--secure-port", secure,
            "--bind-address", "127.0.0.1", "--cert-dir", folder / "certificates",
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", folder / "public",
            "--service-account-signing-key-file", folder / "key",
            "--token-auth-file", folder / "tokens", "--authorization-mode", "RBAC",
            "--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none",
        )  # fmt: skip
        eventually(self.is_ready, f"the API server, logs in {folder}")
        self.start(
            "kube-controller-manager", "--kubeconfig", self.kubeconfig, "--leader-elect=false",
            "--service-account-private-key-file", folder / "key", "--secure-port", "0",
        )  # fmt: skip

    def start(self, name, *arguments):
        program = self.folder / name
        program.symlink_to(KUBERNETES)
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [program, *map(str, arguments)]
            self.children.append(subprocess.Popen(command, stdout=log, stderr=log))

    def stop(self):
        for child in reversed(self.children):
            child.kill()
            child.wait()

    def ask(self, path, body=None):
        headers = {"Authorization": "Bearer root", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        trusting = ssl._create_unverified_context()
        with urllib.request.urlopen(request, context=trusting) as answer:
            return answer.read()

    def is_ready(self):
        try:
            return self.ask("/readyz") == b"ok"
        except OSError:
            return False

    def names(self, path):
        return {item["metadata"]["name"] for item in json.loads(self.ask(path))["items"]}

    def helm(self, *arguments):
        return run(HELM, "--kubeconfig", self.kubeconfig, *arguments)


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory):
    control = ControlPlane(tmp_path_factory.mktemp("kubernetes"))
    yield control
    control.stop()


@pytest.mark.parametrize(
    ("name", "values", "replicas"),
    [
        ("alone", [], 1),
        ("cluster", CLUSTER, 3),
        ("all", [*EVERYTHING, *WITHOUT_OPERATOR], 3),
    ],
)
def test_the_chart_is_installed_upgraded_and_removed(kubernetes, name, values, replicas):
    # Pods that a cautious administrator would not admit are refused there.
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubernetes.ask("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    where = f"/api/v1/namespaces/{name}"
    eventually(lambda: "default" in kubernetes.names(f"{where}/serviceaccounts"), "the namespace")
    sets = [word for value in values for word in ("--set", value)]
    kubernetes.helm("install", "mine", CHART, "--namespace", name, *sets)
    brokers = {f"mine-quelea-{number}" for number in range(replicas)}
    pods = f"{where}/pods"
    eventually(lambda: brokers <= kubernetes.names(pods), "the pods of the brokers")
    jobs = f"/apis/batch/v1/namespaces/{name}/jobs"
    if values:
        assert kubernetes.names(jobs) == {"mine-quelea-init-1"}
        is_init = lambda: any("init-1-" in pod for pod in kubernetes.names(pods))  # noqa: E731
        eventually(is_init, "the pod of the job")
    kubernetes.helm("upgrade", "mine", CHART, "--namespace", name, *sets, "--set", "podLabels.a=b")
    assert kubernetes.names(jobs) == ({"mine-quelea-init-2"} if values else set())
    kubernetes.helm("uninstall", "mine", "--namespace", name)
    eventually(lambda: not kubernetes.names(pods), "the end of all pods")
    # Kubernetes keeps the data.
    claims = kubernetes.names(f"{where}/persistentvolumeclaims")
    assert claims == {f"data-{broker}" for broker in brokers}
