"""Settings of the baseline. Its answers are checked in test_textgen.py."""

import pytest
import torch
from torch.backends import cuda

from punica_serve.bench import peft_baseline
from punica_serve.bench.peft_baseline import NUM_REQUESTS, run_peft
from punica_serve.bench.subject import Subject
from punica_serve.workload import RequestLength


def test_it_has_torchs_own_library_and_leaves_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, seen = ["cublaslt"], []

    def prefer(name: str | None = None) -> str:
        chosen.extend([name] if name else [])
        return chosen[-1]

    monkeypatch.setattr(cuda, "is_built", lambda: True)
    monkeypatch.setattr(cuda, "preferred_blas_library", prefer)
    monkeypatch.setattr(peft_baseline, "_make_model", lambda *_: torch.nn.Identity())
    monkeypatch.setattr(peft_baseline, "_generate", lambda *_: seen.append(prefer()))
    times = run_peft(Subject.of_shape("1b", "cpu"), [RequestLength(3, 5)] * 9, rank=8)
    assert times.num_requests == NUM_REQUESTS and seen == ["default"] * (1 + NUM_REQUESTS)
    assert chosen[-1] == "cublaslt"
