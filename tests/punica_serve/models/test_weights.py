import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from punica_serve.base_model.weight_headers import list_weights
from punica_serve.errors import ModelRejected
from punica_serve.models.weights import read_weights


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


def test_tensors_that_lie_upon_each_other_are_refused_by_the_file(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelRejected, match=r"/model\.safetensors can't be read as safetensors: "):
        list(read_weights(list_weights(tmp_path)))
