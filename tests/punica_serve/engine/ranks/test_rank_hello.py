"""Ranks that don't fit together are refused by name."""

import os
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.rank_hello import check_hellos, hello_of, model_digest
from punica_serve.engine.ranks.rank_messages import RankHello
from punica_serve.errors import ConfigError

_GIB = 1 << 30
LEADER = RankHello("0.1.0.5.7", "digest", "nccl beyond", "GPU-a", "H100", 80 * _GIB)
OTHER = replace(LEADER, gpu_uuid="GPU-b", device_bytes=80 * _GIB - (1 << 20))


def test_equal_ranks_fit(tiny_llama: Path) -> None:
    check_hellos({"rank 0 (cuda:0)": LEADER, "rank 1 (cuda:1)": OTHER})
    own = hello_of(EngineConfig(model=tiny_llama), torch.device("cpu"), 3)
    check_hellos({"rank 0 (cpu)": own, "rank 1 (cpu)": own, "rank 2 (cpu)": own})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (LEADER, r"rank 0 \(cuda:0\) and rank 1 \(cuda:1\) are the same GPU \(GPU-a\)"),
        (replace(OTHER, version="0.0.9"), r"rank 1 \(cuda:1\) runs version 0.0.9, rank 0 \(cuda:0\) 0.1.0.5.7"),
        (replace(OTHER, model="other"), r"rank 1 \(cuda:1\) reads other model files than rank 0 \(cuda:0\)"),
        (replace(OTHER, device_name="A100"), "a H100 with 80 GiB and rank 1 .* is a A100 with 80 GiB"),
        (
            replace(OTHER, exchange="two_shot up to 64 bytes, nccl beyond"),
            r"adds up by nccl beyond, rank 1 \(cuda:1\) by two_shot up to 64 bytes, .* same `engine.exchange_times`",
        ),
        (replace(OTHER, device_bytes=40 * _GIB), "a H100 with 80 GiB and rank 1 .* is a H100 with 40 GiB"),
    ],
)
def test_what_does_not_fit_is_named(other: RankHello, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_hellos({"rank 0 (cuda:0)": LEADER, "rank 1 (cuda:1)": other})


def test_a_model_is_the_same_on_all_hosts(tmp_path: Path) -> None:
    configs = [EngineConfig(model=tmp_path / host) for host in ("one", "other")]
    for time_s, config in enumerate(configs):
        config.model.mkdir()
        (config.model / "config.json").write_text("{}")
        (config.model / "model.safetensors").write_bytes(bytes(1 << 20))
        os.utime(config.model / "model.safetensors", (time_s, time_s))
    assert model_digest(configs[0]) == model_digest(configs[1])


def test_a_model_is_another_one_when_its_files_change(tmp_path: Path) -> None:
    config = EngineConfig(model=tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    before = model_digest(config)
    assert model_digest(config) == before
    (tmp_path / "model.safetensors").write_bytes(bytes(9))
    changed = model_digest(config)
    assert changed != before
    (tmp_path / "model.safetensors").write_bytes(bytes(8) + b"1")
    assert model_digest(config) not in (before, changed), "other weights of the same size"
    (tmp_path / "config.json").write_text("{ }")
    assert model_digest(config) not in (before, changed)
