"""The file of a packed adapter: read as it is copied to a GPU, instead of hashed and packed again at every load.

A header of 4 KiB, then the adapter's memory as it is, in a few chunks, each with a checksum and aligned to 4 KiB. The
SHA-256 of an adapter is checked when its bytes come to the host; checksums of 128 bits (xxh3) guard what is read from
then on against damage.

A chunk is one read and one checksum, while other chunks are read. More pieces, such as one for
each layer, would take as many times as long beside a busy step loop: each call releases the GIL and must get it back.
"""

import hashlib
import json
import os
from dataclasses import dataclass

import torch
import xxhash

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.packed_chunk import BLOCK_BYTES
from punica_serve.engine.adapters.packed_header import PackedName, chunk_ranges, encode_header
from punica_serve.protocol import AdapterRef

#: Raised with every change of this format, or of what packing makes.
_VERSION = 6


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """How a model's adapters are packed, or a rank's share of them. Files of equal ``name`` have one layout."""

    name: str

    @classmethod
    def of(cls, model: ModelConfig, dtype: torch.dtype) -> "PackedLayout":
        groups = [
            (each.name, len(each.projections), len(each.lora_inputs), each.out_offsets)
            for each in model.spec.lora_groups
        ]
        rank = [model.rank.index, model.rank.size] if model.rank.size > 1 else []
        meaning = json.dumps([_VERSION, str(dtype), LORA_PAGE_RANKS, model.num_hidden_layers, groups, *rank])
        return cls(hashlib.sha256(meaning.encode()).hexdigest()[:32])


def packed_name(ref: AdapterRef, layout: PackedLayout) -> PackedName:
    """Names the adapter's bytes, ranks and scalings: what its packed form depends on."""
    meaning = json.dumps([ref.digest, sorted(ref.ranks.items()), list(ref.scalings)])
    return PackedName(layout.name, hashlib.sha256(meaning.encode()).hexdigest())


def write_packed(descriptor: int, name: PackedName, memory: memoryview) -> None:
    """Writes the ``memory`` of a packed adapter to an empty file. Raises OSError."""
    checksums = []
    for each in chunk_ranges(len(memory)):
        chunk = memory[each.start : each.stop]
        checksums.append(xxhash.xxh3_128_digest(chunk))
        _write_all(descriptor, chunk, BLOCK_BYTES + each.start)
    _write_all(descriptor, memoryview(encode_header(name, tuple(checksums))), 0)


def _write_all(descriptor: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)
