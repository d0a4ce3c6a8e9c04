import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from punica_serve.errors import ModelRejected
from punica_serve.models.weights import list_weights, read_weights


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
    single = dict(read_weights(list_weights(tiny_llama)))
    sharded = dict(read_weights(list_weights(_shard(tiny_llama, tmp_path))))
    assert single.keys() == sharded.keys()
    assert all(torch.equal(single[name], sharded[name]) for name in single)


def test_headers_tell_the_shapes(tiny_llama: Path) -> None:
    shapes = {name: stored.shape for name, stored in list_weights(tiny_llama).items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in load_file(tiny_llama / "model.safetensors").items()}


def test_a_cut_file_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    path = _shard(tiny_llama, tmp_path) / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelRejected, match=r"model-00001-of-00002\.safetensors can't be read as safetensors"):
        list_weights(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.int8, "I8"), (torch.int64, "I64"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.float64, "F64")],
)
def test_a_tensor_of_another_kind_is_named(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    save_file({"fine": torch.ones(2), "odd": torch.ones(2).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelRejected, match=f"tensor `odd` is of {name}") as caught:
        list_weights(tmp_path)
    assert caught.value.param == "odd"
