"""Adapters that exist by their shape alone: names and AdapterRefs without files, for dummy weights and simulated GPUs.

A worker with an engine makes random weights of the shape when one is first used; a simulated one needs no weights.
"""

import hashlib
from collections.abc import Mapping

from punica_serve.lora_layout import LORA_GROUPS
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import AdapterRef

#: What the uri of a dummy adapter starts with; its number follows.
_SCHEME = "dummy:"
_NUM_WEIGHT_BYTES = 2


def dummy_name(number: int) -> str:
    """What the API calls it."""
    return f"dummy-{number}"


def dummy_adapters(count: int, rank: int, model: ModelConfig) -> Mapping[str, AdapterRef]:
    """So many adapters of one rank on all linear modules, by name, as large as files of 16-bit weights would be."""
    ranks = {module: rank for modules in LORA_GROUPS.values() for module in modules}
    num_weights = model.num_hidden_layers * sum(rank * sum(model.linear_shapes[module]) for module in ranks)
    return {
        dummy_name(number): AdapterRef(
            digest=hashlib.sha256(
                f"{model.linear_shapes} {model.num_hidden_layers} {rank} {number}".encode()
            ).hexdigest(),
            uri=f"{_SCHEME}{number}",
            num_bytes=num_weights * _NUM_WEIGHT_BYTES,
            ranks=ranks,
        )
        for number in range(count)
    }


def dummy_number(ref: AdapterRef) -> int | None:
    """The number of a dummy adapter; None for one that has files."""
    return int(ref.uri.removeprefix(_SCHEME)) if ref.uri.startswith(_SCHEME) else None
