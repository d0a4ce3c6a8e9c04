"""Which profile a live cluster may use."""

from pathlib import Path
from typing import Any

import pytest

from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.cluster_model import PLACEMENTS_BY_COST, cluster_model
from punica_serve.performance.profile import load_profile, write_profile


def config(
    model: str = "llama-2-7b",
    dtype: str | None = None,
    devices: tuple[str, ...] = ("cuda:0",),
    **scheduler: Any,
) -> ClusterConfig:
    folder = Path(__file__).parents[3] / "punica_serve" / "punica_serve" / "shapes" / model
    engine = {"model": str(folder), "load_format": "dummy", "tokenizer": "demo:model", "dtype": dtype}
    sections = {"engine": engine, "scheduler": scheduler, "runner": {"devices": list(devices)}}
    return ClusterConfig.model_validate(sections, context={"folder": Path.cwd()})


def test_without_a_profile_there_is_no_model() -> None:
    assert cluster_model(config()) is None


@pytest.mark.parametrize("placement", sorted(PLACEMENTS_BY_COST))
def test_a_placement_by_cost_refuses_to_start_without_a_profile(placement: str) -> None:
    with pytest.raises(ConfigError, match=f"placement: {placement}` needs to know how long steps take; set"):
        cluster_model(config(placement=placement))


def test_the_profile_of_this_model_is_read() -> None:
    model = cluster_model(config(dtype="bfloat16", profile="h200-7b"))
    assert model is not None and model.step_times.profile.device == "NVIDIA H200"
    assert (model.prefill_budget.tokens, model.prefill_budget.num_cut(0, 32_000)) == (512, 157)


def test_the_profile_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"of another model than `engine.model` \(num_hidden_layers 32, not 40\)"):
        cluster_model(config("llama-2-13b", dtype="bfloat16", profile="h200-7b"))


def test_the_profile_of_another_data_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds for bfloat16, and the engine uses float32"):
        cluster_model(config(dtype="float32", profile="h200-7b"))


def test_a_profile_with_prefills_beside_decodes_is_taken_for_any_device() -> None:
    model = cluster_model(config(dtype="bfloat16", profile="h200-7b"))
    assert model is not None and model.step_times.profile.prefills == "beside"


@pytest.mark.parametrize("devices", [("cuda:0",), ("simulated", "cpu")])
def test_a_profile_with_prefills_apart_is_refused_by_name_for_real_devices(devices: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="'A10, Llama-2-7B in 16 bits, padded LoRA' has prefills") as refused:
        cluster_model(config(dtype="float16", devices=devices, profile="a10-7b-padded"))
    assert refused.value.param == "scheduler.profile"


def test_a_profile_with_prefills_apart_is_taken_for_simulated_devices() -> None:
    model = cluster_model(config(dtype="float16", devices=("simulated", "simulated"), profile="a10-7b-padded"))
    assert model is not None and model.step_times.profile.prefills == "apart"


@pytest.mark.parametrize(
    ("group_size", "devices", "message"),
    [
        (1, "cuda:0,cuda:1", "of workers of one device, and `runner` has groups of 2; .*--tensor-parallel 2`"),
        (2, "cuda:0", "of groups of 2, and `runner` has workers of one device; .*--tensor-parallel 1`"),
        (4, "cuda:0,cuda:1", "of groups of 4, and `runner` has groups of 2"),
        (2, "cuda:0,cuda:1", None),
        (8, "simulated", None),
    ],
)
def test_a_profile_is_of_the_groups_that_the_runners_have(
    group_size: int, devices: str, message: str | None, tmp_path: Path
) -> None:
    """Each simulated GPU stands for a whole group."""
    file = tmp_path / "group.yaml"
    write_profile(load_profile("h200-7b").model_copy(update={"group_size": group_size}), file)
    own = config(dtype="bfloat16", devices=(devices,), profile=str(file))
    if message is None:
        model = cluster_model(own)
        assert model is not None and model.step_times.profile.group_size == group_size
    else:
        with pytest.raises(ConfigError, match=message) as refused:
            cluster_model(own)
        assert refused.value.param == "scheduler.profile"
