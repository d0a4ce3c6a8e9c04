"""The performance model of a live cluster: which profiles it takes."""

from typing import Any

import pytest

from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.cluster_model import cluster_model


def config(profile: str | None, *devices: str, placement: str = "rank_aware") -> ClusterConfig:
    sections: dict[str, Any] = {
        "engine": {"model": "shape:llama-2-7b", "tokenizer": "demo:model", "load_format": "dummy", "num_kv_pages": 10},
        "runner": {"devices": list(devices)},
        "scheduler": {"placement": placement, "profile": profile},
    }
    return ClusterConfig.model_validate(sections)


def test_a_profile_with_prefills_beside_decodes_is_taken_for_any_device() -> None:
    model = cluster_model(config("h200-7b", "cuda:0"))
    assert model is not None and model.profile.prefills == "beside"


@pytest.mark.parametrize("devices", [("cuda:0",), ("simulated", "cpu")])
def test_a_profile_with_prefills_apart_is_refused_by_name_for_real_devices(devices: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="'A10, Llama-2-7B in 16 bits, padded LoRA' has prefills") as refused:
        cluster_model(config("a10-7b-padded", *devices))
    assert refused.value.param == "scheduler.profile"


def test_a_profile_with_prefills_apart_is_taken_for_simulated_devices() -> None:
    model = cluster_model(config("a10-7b-padded", "simulated", "simulated"))
    assert model is not None and model.profile.prefills == "apart"


def test_a_placement_by_cost_without_a_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs to know how long steps take"):
        cluster_model(config(None, "simulated"))
    assert cluster_model(config(None, "simulated", placement="punica")) is None
