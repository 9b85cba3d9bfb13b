"""The Helm chart: lint, what it makes of values, and whether the broker accepts its configuration."""

import json
import os
import re
import shutil
import subprocess
import tomllib

import kubernetes_validate
import pytest
import yaml

import certificates
from conftest import BINARIES, ROOT, run

CHART = ROOT / "packaging/helm/quelea"
HELM = ROOT / "target/helm/helm"
RULES = ROOT / "packaging/observability/quelea.rules.yml"
DASHBOARDS = ROOT / "packaging/observability/grafana"
OWN_PROMTOOL = ROOT / "tests/e2e/.prometheus/promtool"
PROMTOOL = shutil.which("promtool") or (str(OWN_PROMTOOL) if OWN_PROMTOOL.exists() else None)
# A Helm built with `go install` knows no version of Kubernetes that is current.
KUBERNETES = ["--kube-version", "1.34.0"]
# Of these kinds the schemas are not Kubernetes' own.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
CLUSTER = [
    "cluster.enabled=true", "replicas=3", "cluster.servers={nats://n-0:4222,nats://n-1:4222}",
    "cluster.existingSecret=nats",
]
EVERYTHING = [
    *CLUSTER, "tls.secretName=tls", "tls.clientAuth=require", "listeners.tls.enabled=true",
    "listeners.ws.enabled=true", "listeners.wss.enabled=true", "auth.existingSecret=users",
    "serviceMonitor.enabled=true", "prometheusRule.enabled=true", "dashboards.enabled=true",
    "networkPolicy.enabled=true", "service.type=LoadBalancer",
    "service.externalTrafficPolicy=Local", "settings.limits\\.queued_messages_max=5000000",
]

pytestmark = pytest.mark.skipif(not HELM.exists(), reason="tests/helm has not built Helm: no Go?")


def template(*values, code=0, release="mine"):
    sets = [word for value in values for word in ("--set", value)]
    done = subprocess.run(
        [HELM, "template", release, CHART, *KUBERNETES, *sets],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else [one for one in yaml.safe_load_all(done.stdout) if one]


def one(objects, kind, name="mine-quelea"):
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def only(objects, kind):
    (found,) = [o for o in objects if o["kind"] == kind]
    return found


def container(objects):
    return one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("values", [[], CLUSTER, EVERYTHING], ids=["defaults", "cluster", "all"])
def test_the_objects_are_valid(values):
    sets = [word for value in values for word in ("--set", value)]
    run(HELM, "lint", "--strict", *KUBERNETES, *sets, CHART)
    objects = template(*values)
    for found in objects:
        if found["kind"] not in FOREIGN:
            kubernetes_validate.validate(found, "1.34", strict=True)
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(set(names)) == len(names)


def test_the_default_is_one_confined_broker():
    objects = template()
    broker, pod = container(objects), one(objects, "StatefulSet")["spec"]["template"]["spec"]
    assert broker["securityContext"]["readOnlyRootFilesystem"] is True
    assert broker["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    probes = {name: broker[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")}
    assert probes == {"liveness": "/healthz", "readiness": "/readyz"}
    assert one(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert not [o for o in objects if o["kind"] in ("Job", "NetworkPolicy", *FOREIGN)]
    assert not [o for o in objects if o["metadata"]["name"].endswith("-dashboards")]


def test_mounts_have_volumes_and_services_lead_to_ports():
    objects = template(*EVERYTHING)
    spec = one(objects, "StatefulSet")["spec"]
    pod = spec["template"]["spec"]
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in pod["volumes"]} | claims
    mounts = container(objects)["volumeMounts"]
    assert {mount["name"] for mount in mounts} == volumes
    # A mount inside a read-only one cannot be made.
    paths = [mount["mountPath"] + "/" for mount in mounts]
    assert not [a for a in paths for b in paths if a != b and a.startswith(b)]
    ports = {port["name"] for port in container(objects)["ports"]}
    labels = spec["template"]["metadata"]["labels"]
    for service in (one(objects, "Service"), one(objects, "Service", "mine-quelea-pods")):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
        assert service["spec"]["selector"].items() <= labels.items()
    assert spec["serviceName"] == "mine-quelea-pods"
    monitor = one(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    pods = one(objects, "Service", "mine-quelea-pods")["metadata"]["labels"]
    assert monitor.items() <= pods.items()
    job = one(objects, "Job", "mine-quelea-init-1")["spec"]["template"]
    selector = one(objects, "Service")["spec"]["selector"]
    assert not selector.items() <= job["metadata"]["labels"].items(), "clients never reach the job"


def test_a_cluster_does_not_wait_for_standbys():
    spec = one(template(*CLUSTER), "StatefulSet")["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    variables = {one["name"]: one for one in container(template(*CLUSTER))["env"]}
    advertise = variables["QUELEA_cluster__advertise"]["value"]
    assert advertise == "$(POD_NAME).mine-quelea-pods.$(POD_NAMESPACE).svc:1883"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["replicas=2"], "cluster.enabled"),
        (["cluster.enabled=true"], "cluster.servers"),
        (["listeners.tcp.enabled=false"], "at least one"),
        (["listeners.tcp.port=9883"], "port of its own"),
        (["listeners.ws.enabled=true", "listeners.ws.port=1883"], "port of its own"),
        (["listeners.tcp.port=883"], "883"),
        (["listeners.tls.enabled=true"], "tls.secretName"),
        (["tls.clientAuth=require"], "tls.clientAuth"),
        (["tls.clientAuth=request"], "clientAuth"),
        (["replica=1"], "replica"),
        (["auth.anonymous=true"], "anonymous"),
        (["settings.packet_bytes_max=1MiB"], "packet_bytes_max"),
        # No rule would select it.
        (["serviceMonitor.job=mqtt"], "job"),
    ],
)
def test_wrong_values_are_refused_by_name(values, says):
    assert says in template(*values, code=1)


@pytest.mark.parametrize(
    "values",
    [[], CLUSTER, EVERYTHING, ["auth.allowAnonymous=true"]],
    ids=["defaults", "cluster", "all", "anonymous"],
)
def test_the_broker_accepts_the_configuration(values, tmp_path):
    objects = template(*values)
    data = one(objects, "ConfigMap")["data"]
    config = data["quelea.toml"]
    tomllib.loads(config)
    made = certificates.make(tmp_path)
    files = {
        "/etc/quelea-tls/tls.crt": made / "server.crt",
        "/etc/quelea-tls/tls.key": made / "server.key",
        "/etc/quelea-tls/ca.crt": made / "ca.crt",
        "/etc/quelea-auth/passwords": tmp_path / "passwords",
        "/etc/quelea/passwords": tmp_path / "passwords",
        "/etc/quelea-cluster/password": tmp_path / "password",
        "/var/lib/quelea/data": tmp_path / "data",
    }
    (tmp_path / "passwords").write_text(data["passwords"])
    (tmp_path / "password").write_text("secret\n")
    for path, there in files.items():
        config = config.replace(f'"{path}"', f'"{there}"')
    assert not re.search(r'"/(etc|var)/', config)
    # The check asks whether the ports are free.
    config = re.sub(r"(\*|0\.0\.0\.0):[0-9]+", "127.0.0.1:0", config)
    (tmp_path / "quelea.toml").write_text(config)
    variables = {
        # Kubernetes replaces these references.
        variable["name"]: re.sub(r"\$\(POD_(NAME|NAMESPACE)\)", "a", variable.get("value", "someone"))
        for variable in container(objects)["env"] or []
        if variable["name"].startswith("QUELEA_")
    }
    checked = run(
        BINARIES / "quelea", "serve", "--config", tmp_path / "quelea.toml", "--check-config",
        env={**os.environ, **variables},
    )
    printed = run(
        BINARIES / "quelea", "serve", "--config", tmp_path / "quelea.toml", "--print-config",
        env={**os.environ, **variables},
    )
    assert "warn" not in checked.lower(), checked
    if "settings" in " ".join(values):
        assert "queued_messages_max = 5000000" in printed


def test_rules_and_dashboards_are_those_of_the_repository():
    objects = template(
        "prometheusRule.enabled=true", "prometheusRule.labels.release=prometheus",
        "dashboards.enabled=true",
    )
    rule = one(objects, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    boards = one(objects, "ConfigMap", "mine-quelea-dashboards")
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {f"quelea-{path.name}": path.read_text() for path in DASHBOARDS.glob("*.json")}
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        name: json.loads(text) for name, text in files.items()
    }


def target_labels(objects, pod, namespace="mqtt"):
    """The labels of a target as the Prometheus Operator makes them: the job is the name of the
    Service, then the relabelings of the ServiceMonitor."""
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    (service,) = [
        found for found in objects if found["kind"] == "Service"
        and found["metadata"]["labels"].get("app.kubernetes.io/component") == "pods"
    ]
    labels = {
        "job": service["metadata"]["name"], "service": service["metadata"]["name"], "pod": pod,
        "namespace": namespace, "endpoint": "http", "instance": "10.0.0.7:8080",
        "__meta_kubernetes_namespace": namespace, "__meta_kubernetes_pod_name": pod,
    }
    for step in endpoint.get("relabelings", []):
        assert set(step) <= {"targetLabel", "replacement", "sourceLabels", "separator"}, step
        joined = step.get("separator", ";").join(labels[of] for of in step.get("sourceLabels", []))
        labels[step["targetLabel"]] = step.get("replacement", "$1").replace("$1", joined)
    return {name: text for name, text in labels.items() if not name.startswith("__")}


@pytest.mark.skipif(not PROMTOOL, reason="no promtool: tests/setup takes it out of a package")
@pytest.mark.parametrize("release", ["mine", "quelea"])
@pytest.mark.parametrize("job", [None, "quelea-west"])
def test_alerts_fire_for_the_job_of_the_chart(release, job, tmp_path):
    """With each rule that selects a job, and one of a cluster."""
    values = ["serviceMonitor.enabled=true", "prometheusRule.enabled=true"]
    values += [f"serviceMonitor.job={job}"] if job else []
    objects = template(*values, release=release)
    rules = only(objects, "PrometheusRule")["spec"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    name = only(objects, "ServiceMonitor")["metadata"]["name"]
    labels = target_labels(objects, f"{name}-0")
    assert labels["instance"] == f"mqtt/{name}-0"
    shown = ",".join(f'{key}="{text}"' for key, text in labels.items())
    series = {
        f"up{{{shown}}}": "0x60",
        f"process_start_time_seconds{{{shown}}}": "1 2 3 4 5 5x55",
        f"process_open_fds{{{shown}}}": "95x60",
        f"process_max_fds{{{shown}}}": "100x60",
        f'quelea_cluster_role{{role="active",{shown}}}': "0x60",
    }
    alerts = ["QueleaDown", "QueleaRestarts", "QueleaOpenFiles", "QueleaClusterNotServed"]
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": "10m", "exp_samples": samples}
        ],
    }
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(whole))
    run(PROMTOOL, "test", "rules", tmp_path / "test.yml", cwd=tmp_path)


def test_the_chart_has_the_version_of_the_broker():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert chart["version"] == chart["appVersion"] == cargo
