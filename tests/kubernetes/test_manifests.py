"""The overlays as kustomize renders them, against Kubernetes' own schemas and what we promise of them."""

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from punica_serve.config.cluster import load_config, parse_config

KUBERNETES = Path(__file__).parents[2] / "kubernetes"
OVERLAYS = ("demo", "production")
Manifest = dict[str, Any]


def renderer() -> list[str] | None:
    """kustomize, or the one in kubectl."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


pytestmark = pytest.mark.skipif(renderer() is None, reason="needs kubectl or kustomize")


@functools.cache
def rendered(overlay: str) -> list[Manifest]:
    program = renderer()
    assert program is not None
    done = subprocess.run(
        [*program, str(KUBERNETES / "overlays" / overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    return [manifest for manifest in rendered(overlay) if manifest["kind"] in kinds]


def pods(overlay: str) -> dict[str, Manifest]:
    """Specifications of pods, by what they run."""
    workloads = of_kind(overlay, "Deployment", "StatefulSet")
    return {workload["metadata"]["name"]: workload["spec"]["template"]["spec"] for workload in workloads}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_fits_its_schema(overlay: str) -> None:
    for manifest in rendered(overlay):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_keeps_to_the_restricted_standard(overlay: str) -> None:
    for pod in pods(overlay).values():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_container_has_limits_and_probes_and_no_secret_in_its_environment(overlay: str) -> None:
    for pod in pods(overlay).values():
        (container,) = pod["containers"]
        assert "memory" in container["resources"]["limits"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        assert all(variable["name"].endswith(("_FILE", "_IPS")) for variable in container["env"])
        names = {volume["name"] for volume in pod["volumes"]} | {"cache"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= names


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_drain_ends_before_the_pod_does(overlay: str) -> None:
    config = parse_config({"engine": {"model": "base"}}, source="defaults", folder=KUBERNETES)
    wait_s = float(pods(overlay)["frontend"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pods(overlay)["frontend"]["terminationGracePeriodSeconds"] > wait_s + config.frontend.drain_timeout_s
    runner_s = config.runner.drain_timeout_s + config.runner.stop_timeout_s
    assert pods(overlay)["runner"]["terminationGracePeriodSeconds"] > runner_s


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_there_is_one_scheduler_and_never_two(overlay: str) -> None:
    (scheduler,) = [one for one in of_kind(overlay, "Deployment") if one["metadata"]["name"] == "scheduler"]
    assert (scheduler["spec"]["replicas"], scheduler["spec"]["strategy"]) == (1, {"type": "Recreate"})


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_the_pods_that_they_are_for(overlay: str) -> None:
    labels = {
        name: workload["spec"]["template"]["metadata"]["labels"]
        for workload in of_kind(overlay, "Deployment", "StatefulSet")
        for name in [workload["metadata"]["name"]]
    }
    for manifest in of_kind(overlay, "Service", "PodDisruptionBudget"):
        selector = manifest["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        assert wanted.items() <= labels[manifest["metadata"]["name"]].items()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_passes_the_network_that_is_not_named(overlay: str) -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(overlay, "NetworkPolicy")}
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_config_is_one_that_processes_take(overlay: str) -> None:
    config = load_config(KUBERNETES / "overlays" / overlay / "cluster.yaml")
    assert config.scheduler.port == 8100 and config.frontend.port == 8000
    for manifest in of_kind(overlay, "ConfigMap"):
        assert manifest["data"]["cluster.yaml"] == (KUBERNETES / "overlays" / overlay / "cluster.yaml").read_text()


def test_a_demo_without_keys_is_for_who_forwards_a_port() -> None:
    """On a loopback address a frontend without keys refuses calls by another name than localhost."""
    assert load_config(KUBERNETES / "overlays/demo/cluster.yaml").frontend.host == "127.0.0.1"
    assert [service["metadata"]["name"] for service in of_kind("demo", "Service")] == ["runner", "scheduler"]
    (container,) = pods("demo")["frontend"]["containers"]
    assert "--insecure-no-auth" not in container["args"] and "--host" not in container["args"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert "exec" in container[probe] and "httpGet" not in container[probe], "the kubelet is not on loopback"


def test_production_has_keys_tls_gpus_and_a_shared_registry() -> None:
    config = load_config(KUBERNETES / "overlays/production/cluster.yaml")
    assert config.tls is not None and config.store_url.startswith("s3://")
    assert config.registry.url is not None and config.registry.url.startswith("postgresql://")
    for name, pod in pods("production").items():
        (container,) = pod["containers"]
        assert "--insecure-no-auth" not in container["args"]
        assert name == "scheduler" or "wss://scheduler:8100" in container["args"]
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert str(config.tls.cert.parent) in mounted
    assert pods("production")["runner"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_autoscaler_follows_the_metric_that_prometheus_records() -> None:
    (autoscaler,) = of_kind("production", "HorizontalPodAutoscaler")
    (metric,) = autoscaler["spec"]["metrics"]
    rules = yaml.safe_load((KUBERNETES / "autoscaling/prometheus-rules.yml").read_text())
    adapter = yaml.safe_load((KUBERNETES / "autoscaling/prometheus-adapter.yaml").read_text())
    name = metric["external"]["metric"]["name"]
    assert [rule["record"] for group in rules["groups"] for rule in group["rules"]] == [name]
    assert [rule["seriesQuery"] for rule in adapter["rules"]["external"]] == [name]
    (runner,) = of_kind("production", "StatefulSet")
    assert "replicas" not in runner["spec"], "applied again, it would undo what the autoscaler did"
    target = autoscaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", runner["metadata"]["name"])
