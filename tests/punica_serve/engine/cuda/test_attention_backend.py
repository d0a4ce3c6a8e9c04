"""The kernels that a model's layers need, and the choice between FlashInfer and our own attention on a device."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cuda import attention_backend
from punica_serve.engine.cuda.attention_backend import fa3_modules, flashinfer_rows
from punica_serve.engine.cuda.flashinfer_modules import Fa3Module
from punica_serve.performance.attention_table import AttentionTable, AttentionTime, write_table
from tiny_config import tiny_config

Rows = Callable[..., int | None]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Rows:
    """The rows from which FlashInfer serves, on a GPU that it can serve, with its kernels compiled."""
    monkeypatch.setattr(attention_backend, "why_not", lambda module, device: None)
    monkeypatch.setattr(attention_backend, "is_compiled", lambda module: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    caplog.set_level(logging.INFO)

    def of(**settings: Any) -> int | None:
        config = EngineConfig(model=Path("m"), **settings)
        with ExitStack() as opened:
            return flashinfer_rows(config, tiny_config(), torch.bfloat16, torch.device("cuda"), opened)

    return of


@pytest.fixture
def table(tmp_path: Path) -> Path:
    time = AttentionTime(
        heads=4, kv_heads=2, head_dim=8, prompts=1, new_tokens=512, context=512, triton_us=2.0, flashinfer_us=1.0
    )
    write_table(AttentionTable(version=1, device="a GPU", source="a test", times=(time,)), tmp_path / "times.yaml")
    return tmp_path / "times.yaml"


def test_auto_decides_by_the_table_of_the_config(rows: Rows, table: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert rows(attention_times=table) == 512
    assert caplog.messages == ["attention: FlashInfer for prefills of 512 rows or more, Triton for the rest"]


def test_a_device_without_a_table_is_left_to_our_kernel(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    assert rows() is None
    (message,) = caplog.messages
    assert "Triton for all rows: no times were measured on a GPU; measure them" in message


def test_several_prompts_a_step_need_times_of_several(
    rows: Rows, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert rows(attention_times=table, max_prefills=4) is None
    assert "no times of several prompts a step were measured (`engine.max_prefills`: 4)" in caplog.text


def test_a_table_of_another_device_is_told(
    rows: Rows, table: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another")
    assert rows(attention_times=table) == 512
    assert "`engine.attention_times` was measured on a GPU, and this is another" in caplog.messages


def test_the_settings_may_leave_no_choice(rows: Rows, table: Path) -> None:
    assert rows(attention="triton", attention_times=table) is None
    assert rows(attention="flashinfer") == 1


def test_each_distinct_window_needs_a_module() -> None:
    (module,) = fa3_modules(tiny_config(), torch.bfloat16)
    assert (module.head_dim, module.window, module.soft_cap) == (8, None, 0.0)


def test_the_job_that_compiles_a_module_names_its_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", f"{tmp_path}")
    job = Fa3Module(torch.bfloat16, 128, 4096, 0.0).job
    assert job.command[-4:] == ["bfloat16", "128", "1", "0"]
    assert job.lock == tmp_path / ".cache/flashinfer/punica-serve-bfloat16-128-1-0.lock"


def test_missing_kernels_are_left_uncompiled_where_the_config_says_so(
    rows: Rows, table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attention_backend, "is_compiled", lambda module: False)
    monkeypatch.setattr(attention_backend, "FlashInferCompiler", None)
    assert rows(attention_times=table, compile_flashinfer=False) is None
    assert "`engine.compile_flashinfer` is off" in caplog.text
