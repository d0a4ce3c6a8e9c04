"""An adapter that is packed while its file comes has the pages of one that is packed at once."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from punica_serve.adapters.adapter import Adapter
from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.adapter_packer import AdapterPacker, pack_adapter
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.errors import AdapterRejected


def memory_for(adapter: Adapter, model: ModelConfig, dtype: torch.dtype) -> torch.Tensor:
    """Memory that another adapter had."""
    return torch.full((packed_num_bytes(adapter.ref.ranks, model, dtype),), 0xAB, dtype=torch.uint8)


@pytest.mark.parametrize("source", ["F32", "F16"])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece_bytes", [1000, 50_000, 1 << 30])
def test_pieces_make_the_same_pages(
    tiny_model: ModelConfig, tmp_path: Path, source: Literal["F32", "F16"], target: torch.dtype, piece_bytes: int
) -> None:
    """Layers lie in the file as 0, 1, 10, 11, 2. The rest of the file is other bytes, which nobody may pack."""
    model = replace(tiny_model, num_hidden_layers=12)
    write_random_adapter(tmp_path, model, rank=12, seed=3, lora_alpha=5, dtype=source)
    adapter = load_adapter(read_adapter(tmp_path, model), model)
    whole = memory_for(adapter, model, target)
    pack_adapter(adapter, model, target, whole)

    file = np.full_like(adapter.file, 0xFF)
    pieces = memory_for(adapter, model, target)
    packer = AdapterPacker(replace(adapter, file=file), model, target, pieces)
    for start in range(0, len(file), piece_bytes):
        end = min(start + piece_bytes, len(file))
        file[start:end] = adapter.file[start:end]
        packer.pack(end)
    packer.finish()
    assert torch.equal(pieces, whole)


def test_a_layer_counts_once_all_of_it_is_there(tiny_model: ModelConfig, tmp_path: Path) -> None:
    write_random_adapter(tmp_path, tiny_model, rank=8, seed=0)
    layout = load_adapter(read_adapter(tmp_path, tiny_model), tiny_model).layout
    for run in layout.runs:
        for number in range(run.num_layers):
            place = layout.places[run.first_layer + number, run.module]
            end = max(place.a.end, place.b.end)
            assert run.num_layers_in(end) == number + 1 and run.num_layers_in(end - 1) == number
        assert run.num_layers_in(0) == 0 and run.num_layers_in(1 << 40) == run.num_layers


def test_what_grows_too_large_in_a_piece_is_refused_at_the_end(tiny_model: ModelConfig, tmp_path: Path) -> None:
    write_random_adapter(tmp_path, tiny_model, rank=8, seed=0, scale=1e5)
    adapter = load_adapter(read_adapter(tmp_path, tiny_model), tiny_model)
    memory = memory_for(adapter, tiny_model, torch.float16)
    packer = AdapterPacker(adapter, tiny_model, torch.float16, memory)
    for end in range(0, len(adapter.file) + 5000, 5000):
        packer.pack(end)
    with pytest.raises(AdapterRejected, match=r"too large for torch\.float16"):
        packer.finish()
