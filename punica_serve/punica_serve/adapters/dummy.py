"""Dummy adapters: names and AdapterRefs without files, for dummy weights and simulated GPUs.

A worker with an engine makes random weights of the right shape on first use; a simulated one needs none.
"""

import hashlib
from collections.abc import Mapping

from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.protocol import AdapterRef

#: Prefix of a dummy adapter's URI; its number follows.
_SCHEME = "dummy:"
_NUM_WEIGHT_BYTES = 2


def dummy_name(number: int) -> str:
    """The adapter's name in the API."""
    return f"dummy-{number}"


def dummy_adapters(count: int, rank: int, model: ModelConfig) -> Mapping[str, AdapterRef]:
    """``count`` adapters of one rank on all linear modules, by name, each as large as a file of 16-bit weights."""
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
    """The number of a dummy adapter; None for an adapter with files."""
    return int(ref.uri.removeprefix(_SCHEME)) if ref.uri.startswith(_SCHEME) else None
