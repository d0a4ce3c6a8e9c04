"""Ranks open FlashInfer's exchange together or not at all. Its kernel is played by ranks that are threads."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from punica_kernels.block_end import BlockEnd
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cuda.flashinfer_compiler import CompileJob
from punica_serve.engine.ranks import exchange_check, flashinfer_start
from punica_serve.engine.ranks.flashinfer_norm import FlashInferNorm
from punica_serve.engine.ranks.flashinfer_start import open_flashinfer
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.models.collectives import Collectives
from thread_ranks import run_ranks
from tiny_config import tiny_config

_CONFIG = EngineConfig(model=Path("m"))
_CPU = torch.device("cpu")
#: Opens it on two ranks, of which the second has a fault.
OpenTwo = Callable[[str], list[FlashInferNorm | None]]


class _Norm:
    """Ends blocks as FlashInfer would, or as a rank with a fault does."""

    def __init__(self, library: Any, max_bytes: int, *rows: Any) -> None:
        self._collectives: Collectives = library.collectives
        self._fault = library.fault
        if self._fault == "mapping":
            raise ValueError("no such memory\nhere")

    def __call__(self, end: BlockEnd, *, pdl: bool) -> None:
        self._collectives.add_rms_norm(end, pdl=pdl)
        if self._fault == "sum":
            end.residual.add_(1)


@pytest.fixture
def open_two(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> OpenTwo:
    monkeypatch.setattr(flashinfer_start, "why_not", lambda share, dtype, num_ranks, device: None)
    monkeypatch.setattr(flashinfer_start, "is_compiled", lambda: True)
    monkeypatch.setattr(flashinfer_start, "FlashInferNorm", _Norm)
    monkeypatch.setattr(exchange_check, "_await_end", lambda way, fault_of_others: None)
    caplog.set_level(logging.INFO)

    def of(fault: str) -> list[FlashInferNorm | None]:
        store = HashStore()

        def open_one(collectives: Collectives) -> FlashInferNorm | None:
            own = fault if collectives.rank.index == 1 else ""
            library = SimpleNamespace(store=store, rank=collectives.rank, collectives=collectives, fault=own)
            with ExitStack() as opened:
                ranks = cast(TorchCollectives, library)
                return open_flashinfer(ranks, _CONFIG, 1 << 16, tiny_config(), torch.bfloat16, _CPU, opened)

        return run_ranks(2, open_one)

    return of


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("mapping", "rank 1 can't map FlashInfer's memory: no such memory"),
        ("sum", "rank 1 can't add up by FlashInfer: FlashInfer's kernel has added 65,520 bytes of torch.bfloat16"),
    ],
)
def test_no_rank_takes_one_that_fails_on_one_of_them(
    open_two: OpenTwo, caplog: pytest.LogCaptureFixture, fault: str, message: str
) -> None:
    assert open_two(fault) == [None, None]
    assert len(caplog.messages) == 2, "one of each rank"
    assert all(f"exchanges of layers are not FlashInfer's: {message}" in line for line in caplog.messages)


def test_all_take_one_that_adds_up_right(open_two: OpenTwo, caplog: pytest.LogCaptureFixture) -> None:
    assert all(isinstance(norm, _Norm) for norm in open_two(""))
    assert not caplog.messages


def test_one_that_is_not_compiled_is_compiled_for_the_next_start(
    open_two: OpenTwo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Compiler:
        def __init__(self, jobs: list[CompileJob], consequence: str) -> None:
            events.append(jobs[0].command[-1])

        def close(self) -> None:
            events.append("closed")

    monkeypatch.setattr(flashinfer_start, "is_compiled", lambda: False)
    monkeypatch.setattr(flashinfer_start, "FlashInferCompiler", Compiler)
    assert open_two("") == [None, None]
    assert "rank 0 can't take FlashInfer's exchange: FlashInfer's kernels are not compiled yet" in caplog.text
    assert sorted(events) == ["closed", "closed", *2 * ["punica_serve.engine.ranks.flashinfer_module"]]


def test_an_import_that_fails_is_a_reason(
    open_two: OpenTwo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise AssertionError("libcudart is not loaded")

    monkeypatch.setattr(flashinfer_start, "is_compiled", fail)
    assert open_two("") == [None, None]
    assert "rank 0 can't take FlashInfer's exchange: libcudart is not loaded" in caplog.text
