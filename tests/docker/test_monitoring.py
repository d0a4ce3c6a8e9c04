"""Files of Prometheus and Grafana, by their own checkers and against the metrics that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "docker/grafana/dashboards").glob("*.json"))
CLUSTER = ROOT / "docker/grafana/dashboards/cluster.json"
RULE_FILES = (ROOT / "docker/prometheus/rules.yml", ROOT / "kubernetes/autoscaling/prometheus-rules.yml")


def known_metrics() -> set[str]:
    """As docs/metrics.md lists them, which is made from the code; and what a histogram is made of."""
    names = set(re.findall(r"^\| `((?:vllm:|punica_|http_)\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    return names | {f"{name}_bucket" for name in names}


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:vllm:|punica_|http_)\w+", expression))


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_calls_gpus_by_their_names(dashboard: Path) -> None:
    legends = [target.get("legendFormat", "") for panel in panels(dashboard) for target in panel["targets"]]
    assert not any("{{gpu}}" in legend for legend in legends)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_for_metrics_that_there_are(dashboard: Path) -> None:
    expressions = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    assert expressions
    assert set().union(*map(metrics_in, expressions)) <= known_metrics()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_their_own_places_and_the_provisioned_source(dashboard: Path) -> None:
    sources = yaml.safe_load((ROOT / "docker/grafana/provisioning/datasources/prometheus.yaml").read_text())
    (source,) = sources["datasources"]
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["datasource"]["uid"] == source["uid"]
    assert len({panel["id"] for panel in panels(dashboard)}) == len(panels(dashboard))


def test_the_heat_map_has_a_row_for_each_gpu_in_colours_that_everybody_tells_apart() -> None:
    (heat_map,) = [panel for panel in panels(CLUSTER) if panel["type"] == "heatmap"]
    (target,) = heat_map["targets"]
    assert (target["expr"], target["legendFormat"]) == ("max by (gpu_name) (punica_gpu_batch_size)", "{{gpu_name}}")
    options = heat_map["options"]
    assert not options["calculate"] and target["format"] == "time_series", "a series is a row, and not a bucket"
    assert options["color"]["scheme"] in {"Magma", "Viridis", "Inferno", "Plasma", "Cividis"}
    assert options["filterValues"]["le"] < 0, "an idle GPU has a colour too"


def test_the_cluster_shows_statuses_and_times_of_requests() -> None:
    shown = set().union(*(metrics_in(target["expr"]) for panel in panels(CLUSTER) for target in panel["targets"]))
    times = {f"vllm:request_{name}_seconds_bucket" for name in ("time_per_output_token", "prefill_time", "decode_time")}
    assert {"http_requests_total", *times} <= shown


@pytest.mark.parametrize("rules", RULE_FILES, ids=lambda path: path.parent.name)
def test_rules_ask_for_metrics_that_there_are(rules: Path) -> None:
    groups = yaml.safe_load(rules.read_text())["groups"]
    expressions = [rule["expr"] for group in groups for rule in group["rules"]]
    assert set().union(*map(metrics_in, expressions)) <= known_metrics()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "config", "docker/prometheus/prometheus.yml"],
        ["test", "rules", "docker/prometheus/rules_test.yml"],
        ["test", "rules", "kubernetes/autoscaling/prometheus-rules-test.yml"],
    ],
    ids=" ".join,
)
def test_promtool_finds_no_mistake_and_alerts_fire_when_they_should(arguments: list[str]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
