"""Policies of one's own, from files."""

from pathlib import Path

import pytest

from all_placements import gpu_model
from placed_requests import PlacedRequests
from punica_scheduler.core.placement import Placement
from punica_scheduler.factory import settings_of
from punica_scheduler.own_placement import load_placement
from punica_serve.config.scheduler_section import SchedulerConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.step_columns import StepTimeColumns
from scheduler_in_words import NewCluster

EXAMPLE = f"{Path(__file__).parents[2] / 'examples' / 'pack_to_half.py'}:PackToHalf"
DOCS = Path(__file__).parents[2] / "docs" / "scheduling.md"


def test_the_example_packs_up_to_half_a_batch_and_then_spreads(new_cluster: NewCluster) -> None:
    cluster = new_cluster(placement=load_placement(EXAMPLE, None))
    for uuid in "AB":
        cluster.gpu_joins(uuid, pages=64, batch=4)
    assert [cluster.arrives(f"r{i}")[0][0] for i in range(8)] == ["A", "A", "B", "B", "A", "B", "A", "B"]


def test_it_gets_the_costs_of_the_profile() -> None:
    assert isinstance(
        _costs_of(settings_of(SchedulerConfig(placement=EXAMPLE), gpu_model()).placement), StepTimeColumns
    )
    assert _costs_of(settings_of(SchedulerConfig(placement=EXAMPLE)).placement) is None


def test_its_dataclass_may_have_annotations_as_strings(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from __future__ import annotations\n" + Path(EXAMPLE.rpartition(":")[0]).read_text())
    assert _costs_of(load_placement(f"{file}:PackToHalf", None)) is None


@pytest.mark.parametrize(
    "name", ["working_set", "room", "adapter_refcounts", "resident", "cached", "load_sums", "info"]
)
def test_a_gpu_tells_it_what_the_docs_promise(name: str) -> None:
    """See docs/scheduling.md. Nothing else of ours may read one of them."""
    assert f"`{name}`" in DOCS.read_text()
    assert hasattr(PlacedRequests("A").gpus["A"], name)


def _costs_of(placement: Placement) -> object:
    return getattr(placement, "costs", "none")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "mine.py is not there"),
        ("x = 1\nraise RuntimeError('boom')", "mine.py, line 2: RuntimeError: boom"),
        ("class Mine:\n    a b", "mine.py: SyntaxError: invalid syntax"),
        ("class Mine: pass", r"has no class Mine that inherits from punica_scheduler.core.placement.Placement"),
        ("Mine = 7", "has no class Mine"),
        (
            "from punica_scheduler.core.placement import Placement\nclass Mine(Placement):\n  pass",
            "Mine of .* has no method `candidates`",
        ),
        (
            "from punica_scheduler.core.placement import Placement\nclass Mine(Placement):\n"
            "  def __init__(self): pass\n  def candidates(self, record, index): return iter(())",
            "Mine of .* can't be made with one argument, the costs of steps: TypeError",
        ),
    ],
)
def test_what_is_no_policy_is_said(tmp_path: Path, source: str | None, message: str) -> None:
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        load_placement(f"{tmp_path / 'mine.py'}:Mine", None)
