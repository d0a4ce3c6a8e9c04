"""Two processes, joined by gloo: this one and another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gloo_rank
from mixed_batch import assert_same, serve, write_adapters
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank

_DEADLINE_S = 90


def test_two_processes_say_what_one_says(
    tiny_llama: Path, tiny_model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    adapters = write_adapters(tmp_path / "adapters", tiny_model)
    expected = serve(tiny_llama, adapters)
    store = tmp_path / "store"
    command = [
        sys.executable,
        gloo_rank.__file__,
        str(store),
        "1",
        "2",
        str(tiny_llama),
        *(ref.uri for ref in adapters),
    ]
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}) as other:
        try:
            with gloo_rank.joined(store, 0, 2) as collectives:
                assert collectives.rank == Rank(0, 2)
                answers = serve(tiny_llama, adapters, collectives)
            assert other.wait(_DEADLINE_S) == 0
        finally:
            other.kill()
    assert_same(answers, expected)
