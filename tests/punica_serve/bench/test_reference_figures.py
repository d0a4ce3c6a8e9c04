"""Goals and peers' figures are data that somebody may edit: what is wrong in them is found."""

import msgspec
import pytest

from punica_serve.bench.reference_figures import Bound, Peer, goals, peers
from punica_serve.workload import Population


def test_figures_are_found_by_rank_batch_and_population() -> None:
    assert peers().pair_peer(16, 32, Population.DISTINCT) == Peer("Punica BGMV", 11.0)
    assert peers().layer_peer(64, Population.UNIFORM) == Peer("SGLang triton_v2", 29.4)
    assert peers().mixed_step.microseconds == 18.5
    assert peers().pair_peer(16, 33, Population.DISTINCT) is None
    assert (goals().pair_goal(64, 64, Population.DISTINCT), goals().layer_goal(32, Population.UNIFORM)) == (22.0, 20.0)
    assert goals().pair_goal(8, 64, Population.DISTINCT) is None


def test_every_peers_figure_names_its_date_and_source() -> None:
    for section in (peers().pair, peers().layer, peers().textgen, peers().batching, peers().coldstart_series):
        assert section.date.startswith("2026-") and "measured" in section.source


@pytest.mark.parametrize("raw", [{"figure": "x"}, {"figure": "x", "at_least": 1, "at_most": 2}])
def test_a_goal_has_exactly_one_bound(raw: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError, match="needs either at_least or at_most"):
        msgspec.convert(raw, Bound)
