"""The groups and models whose blocks FlashInfer can end, and the process that compiles its module."""

from pathlib import Path

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.ranks.flashinfer_module import has_whole_warps, job, why_not, why_not_rows
from tiny_config import tiny_config


def _wide(**overrides: bool) -> ModelConfig:
    return tiny_config(hidden_size=4096, **overrides)


def test_a_llama_in_groups_that_it_has_kernels_for_is_taken() -> None:
    for num_ranks in (2, 4, 8):
        assert why_not_rows(_wide(), torch.bfloat16, num_ranks) is None
    assert why_not_rows(_wide(), torch.bfloat16, 3) == "it has no kernel for 3 ranks"
    assert why_not_rows(_wide(), torch.float64, 2) == "it has no kernel for torch.float64"


def test_rows_that_do_not_fill_warps_are_refused() -> None:
    reason = why_not_rows(tiny_config(hidden_size=5376), torch.bfloat16, 2)
    assert reason == "its norm takes no rows of 5376 numbers, which are no whole warps"


def test_other_norms_are_refused() -> None:
    reason = why_not_rows(_wide(is_gemma=True), torch.bfloat16, 2)
    assert reason == "its norms take weights of the rows' dtype, and this model's are in float32"


@pytest.mark.parametrize(
    ("width", "is_whole"),
    [
        *((width, True) for width in (256, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 16384)),
        *((width, False) for width in (0, 64, 1000, 4100, 5376, 9216)),
    ],
)
def test_blocks_of_its_launches_have_whole_warps(width: int, is_whole: bool) -> None:
    assert has_whole_warps(2 * width) == is_whole


def test_one_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_serve.engine.ranks.flashinfer_module.find_spec", lambda name: None)
    reason = why_not(_wide(), torch.bfloat16, 2, torch.device("cuda"))
    assert reason == "FlashInfer is not installed (extra `gpu`)"


def test_one_process_of_a_host_compiles_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", f"{tmp_path}")
    assert job().command[-2:] == ["-m", "punica_serve.engine.ranks.flashinfer_module"]
    assert job().lock == tmp_path / ".cache/flashinfer/punica-serve-exchanges.lock"
