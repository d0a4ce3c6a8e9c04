import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from punica_serve.errors import ModelRejected
from punica_serve.models.weights import read_weights
from punica_serve.weight_files import weight_files

CPU = torch.device("cpu")


def _shard(source: Path, folder: Path) -> Path:
    """The same weights in two files with an index, as large models come."""
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    weight_map = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_several_files_hold_the_same_model_as_one(tiny_llama: Path, tmp_path: Path) -> None:
    single = read_weights(tiny_llama, torch.float32, CPU)
    sharded = read_weights(_shard(tiny_llama, tmp_path), torch.float32, CPU)
    assert single.keys() == sharded.keys()
    assert all(torch.equal(single[name], sharded[name]) for name in single)


def test_weights_are_converted(tiny_llama: Path) -> None:
    tensors = read_weights(tiny_llama, torch.bfloat16, CPU)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def _break_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text("{")
    return "no index of safetensors"


def _lose_shard(folder: Path) -> str:
    (folder / "model-00002-of-00002.safetensors").unlink()
    return "names model-00002-of-00002.safetensors, which is not in"


def _cut_shard(folder: Path) -> str:
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    return "model-00001-of-00002.safetensors can't be read as safetensors"


@pytest.mark.parametrize("damage", [_break_index, _lose_shard, _cut_shard])
def test_damage_is_named(tiny_llama: Path, tmp_path: Path, damage: Callable[[Path], str]) -> None:
    message = damage(_shard(tiny_llama, tmp_path))
    with pytest.raises(ModelRejected, match=message):
        read_weights(tmp_path, torch.float32, CPU)


def test_pickles_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelRejected, match="only safetensors weights are read"):
        weight_files(tmp_path)
