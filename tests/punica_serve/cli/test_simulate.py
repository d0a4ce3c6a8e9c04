"""`punica-serve simulate`, on small clusters."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from punica_serve.cli.commands import app
from punica_serve.config.cluster import load_config
from punica_serve.errors import ConfigError, PunicaError
from punica_serve.simulation import timeline

CONFIG = """
engine: {model: "shape:llama-2-7b", num_kv_pages: 500}
dummy_adapters: {count: 4}
runner: {devices: [simulated, simulated]}
simulation:
  interval_s: 1.0
  arrivals: {rate: [[0, 3], [4, 3]]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than these simulations."""
    monkeypatch.setattr(timeline, "draw", lambda columns, path, *, title: path.touch())


def test_a_simulation_leaves_picture_table_and_summary_also_where_a_claim_fails(config: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(config), "--out", str(tmp_path / "out"), "--ablations"])
    assert result.exit_code == 0, result.output
    assert "every stream came out exactly once" in result.output
    assert "FAIL  now and then a GPU runs out of KvCache" in result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["small.csv", "small.json", "small.png"]
    summaries = json.loads((tmp_path / "out" / "small.json").read_text())
    assert list(summaries)[:2] == ["as configured", "most_idle"]
    assert len(summaries) == 6
    assert summaries["as configured"]["num_failed"] == 0


@pytest.mark.usefixtures("no_picture")
def test_a_claim_that_fails_ends_with_code_1_if_it_must_hold(config: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(config), "--out", str(tmp_path / "out"), "--check"])
    assert result.exit_code == 1 and "FAIL  now and then a GPU runs out of KvCache" in result.output


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    ("shape", "profile", "told"),
    [
        ("llama-2-7b", "h200-7b", ""),
        ("llama-3.1-8b", "h200-7b", "'H200, Llama-2-7B in bfloat16' is of another model than `engine.model` (inter"),
        ("llama-2-7b", "cpu-demo", "the demo's model in float32\" is of another model"),
    ],
)
def test_times_that_were_measured_for_another_model_are_told(
    tmp_path: Path, shape: str, profile: str, told: str
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG.replace("llama-2-7b", shape))
    result = CliRunner().invoke(app, ["simulate", str(path), "--profile", profile, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert ("the times are not those of this model" in result.output) == bool(told)
    assert told in result.output, result.output


@pytest.mark.usefixtures("no_picture")
def test_the_seed_is_the_whole_difference(config: Path, tmp_path: Path) -> None:
    tables = []
    for number, seed in enumerate((7, 7, 8)):
        out = tmp_path / str(number)
        CliRunner().invoke(app, ["simulate", str(config), "--out", str(out), "--seed", str(seed)])
        tables.append((out / "small.csv").read_bytes())
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.usefixtures("no_picture")
def test_rate_profile_and_trace_replace_those_of_the_config(config: Path, tmp_path: Path) -> None:
    def run(*options: str) -> tuple[str, float]:
        result = CliRunner().invoke(app, ["simulate", str(config), "--out", str(tmp_path), *options])
        summary = json.loads((tmp_path / "small.json").read_text())["as configured"]
        return result.output, summary["first_token_p50_s"]

    output, slow_s = run()
    _, fast_s = run("--profile", "h200-7b")
    assert fast_s < slow_s / 2
    assert int(output.split()[0]) == pytest.approx(12, abs=10)
    assert int(run("--rate-scale", "10")[0].split()[0]) == pytest.approx(120, abs=40)
    day = tmp_path / "day.csv"
    names = ["HashOwner", "HashApp", "HashFunction", "Trigger"]
    day.write_text(",".join([*names, *map(str, range(1, 1441))]) + "\no,a,f,http" + ",600" * 1440 + "\n")
    assert int(run("--trace", str(day))[0].split()[0]) == pytest.approx(40, abs=30), "600 in a minute, for four seconds"


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    ("max_queue", "told"),
    [
        (
            1,
            r"as configured: \d+ requests failed: the queue .* 1 request; .*\n[\d,]+ tokens: every stream that did not",
        ),
        (None, r"as configured: \d+ requests failed: the prompt [^\n]+\n(?:pass|FAIL)  "),
    ],
)
def test_why_requests_failed_is_told_and_no_more_of_streams_than_there_were(
    config: Path, tmp_path: Path, max_queue: int | None, told: str
) -> None:
    document = yaml.safe_load(CONFIG)
    if max_queue is None:  # no GPU can take any of them
        document["engine"]["num_kv_pages"] = 1
    else:
        document["engine"]["max_batch_size"] = 1
        document["scheduler"] = {"max_queue": max_queue}
    config.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["simulate", str(config), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1, result.output
    assert re.search(told, result.output), result.output


@pytest.mark.parametrize("out", ["/proc/x", "/dev/null/x"])
def test_a_folder_that_cannot_be_made_is_said_before_the_run(config: Path, out: str) -> None:
    with pytest.raises(ConfigError, match=f"`--out` {out}"):
        CliRunner().invoke(app, ["simulate", str(config), "--out", out], catch_exceptions=False)


def test_a_file_that_cannot_be_written_is_said(config: Path, tmp_path: Path) -> None:
    (tmp_path / "small.csv").mkdir()
    with pytest.raises(ConfigError, match=r"`--out`: .*/small.csv can't be written: Is a directory; "):
        CliRunner().invoke(app, ["simulate", str(config), "--out", str(tmp_path)], catch_exceptions=False)


def test_a_config_without_arrivals_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.yaml"
    path.write_text("engine: {model: 'shape:llama-2-7b', num_kv_pages: 500}\n")
    with pytest.raises(ConfigError, match=r"no `simulation.arrivals`"):
        CliRunner().invoke(app, ["simulate", str(path)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--live", "http://127.0.0.1:1"], "no frontend answers at http"),
        *((["--live", url], "' is not a frontend; give") for url in ("foo", "\udcff", "http://127.0.0.1:99999")),
        (["--live", "http://127.0.0.1:1", "--ablations"], "`--live` can't be combined with `--ablations`"),
        (["--live", "http://127.0.0.1:1", "--compare", "random"], "`--live` can't be combined with `--compare`"),
        (["--live", "http://127.0.0.1:1", "--check"], "`--live` can't be combined with `--check`"),
    ],
)
def test_a_live_comparison_needs_a_cluster_as_it_is(config: Path, options: list[str], message: str) -> None:
    with pytest.raises(PunicaError, match=message):
        CliRunner().invoke(app, ["simulate", str(config), *options], catch_exceptions=False)


@pytest.mark.parametrize("name", ["figure13", "thousand", "live-16", "h200-x4", "caraserve", "caraserve-h200"])
def test_the_shipped_simulations_are_valid(name: str) -> None:
    root = Path(__file__).parents[3]
    assert load_config(root / "configs" / "sim" / f"{name}.yaml").simulation.arrivals is not None


@pytest.mark.slow
def test_consolidate_slo_meets_its_goals_on_the_papers_servers(tmp_path: Path) -> None:
    """About 40 s: 20,400 requests on 60 servers, twice. A change of the scheduler's has broken 6 % of the promises."""
    config = Path(__file__).parents[3] / "configs/sim/caraserve.yaml"
    options = ["--compare", "consolidate_slo,most_idle", "--check", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["simulate", str(config), *options])
    assert result.exit_code == 0, result.output
    assert result.output.count("pass  consolidate_slo") == 3
