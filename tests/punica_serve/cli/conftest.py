"""A model folder and a config file that `up` would start, and a way to run a command in this process."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tokenizers
import yaml

from blank_weights import write_blank_weights
from punica_serve.base_model.checkpoint import tensor_shapes
from punica_serve.base_model.config_json import read_model_config
from punica_serve.bench.free_ports import free_port
from punica_serve.cli import commands

LLAMA = {
    "model_type": "llama",
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


class Outcome(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


Cli = Callable[..., Outcome]
WriteConfig = Callable[..., Path]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """cli("up", "--port", "1"): the command, run in this process as the console script runs it."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["punica-serve", *arguments])
        with pytest.raises(SystemExit) as exited:
            commands.run()
        return Outcome(int(exited.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(folder / "tokenizer.json"))
    write_blank_weights(folder, tensor_shapes(read_model_config(folder)))
    return folder


@pytest.fixture
def write_config(tmp_path: Path, model_folder: Path) -> WriteConfig:
    """write_config(adapters={...}): a config file over the model folder, on free ports."""

    def write(**sections: Any) -> Path:
        defaults = {"scheduler": {"port": 0}, "frontend": {"port": 0}, "registry": {"timeout_s": 60.0}}
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump({"engine": {"model": "model"}, **defaults, **sections}))
        return path

    return write


@pytest.fixture
def unused_port() -> int:
    return free_port()
