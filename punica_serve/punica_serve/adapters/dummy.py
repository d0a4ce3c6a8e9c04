"""Dummy adapters: names and AdapterRefs without files, for dummy weights and simulated GPUs.

A worker with an engine makes random weights of the right shape on first use; a simulated one needs none.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.protocol import AdapterRef, LoraGroup

#: Prefix of a dummy adapter's URI; its number follows.
_SCHEME = "dummy:"
_NUM_WEIGHT_BYTES = 2
#: The groups of projections that `dummy_adapters.modules` names.
_GROUPS: Mapping[str, tuple[LoraGroup, ...]] = {"qkv": ("qkv",), "all": ("qkv", "o", "gate_up", "down")}


def dummy_name(number: int) -> str:
    """The adapter's name in the API."""
    return f"dummy-{number}"


def dummy_adapters(dummies: DummyAdaptersConfig, model: ModelConfig) -> Mapping[str, AdapterRef]:
    """The adapters by name, each as large as a file of 16-bit weights.

    Adapters of one rank share a dict of ranks: there may be tens of thousands.
    """
    groups = (model.spec.group(name) for name in _GROUPS[dummies.modules])
    modules = [projection.name for group in groups for projection in group.projections]
    kinds = [_Kind.of(rank, modules, model) for rank in dummies.rank]
    return {
        dummy_name(number): kinds[place % len(kinds)].ref(number) for number, place in enumerate(_places(dummies.count))
    }


def _places(count: int) -> list[int]:
    """The place of each number in a fixed shuffled order, so that a rank says nothing about an adapter's popularity.

    It is the order of the numbers' digests, the same in every process and version.
    """
    order = sorted(range(count), key=lambda number: hashlib.sha256(b"%d" % number).digest())
    places = [0] * count
    for place, number in enumerate(order):
        places[number] = place
    return places


@dataclass(frozen=True, slots=True)
class _Kind:
    """Fields that all adapters of one rank share."""

    ranks: dict[str, int]
    num_bytes: int
    #: The start of their digests' input; an adapter's number follows.
    described: bytes

    @classmethod
    def of(cls, rank: int, modules: Sequence[str], model: ModelConfig) -> "_Kind":
        shapes = {module: model.linear_shapes[module] for module in modules}
        num_weights = model.num_hidden_layers * rank * sum(map(sum, shapes.values()))
        described = f"{shapes} {model.num_hidden_layers} {rank} ".encode()
        return cls(dict.fromkeys(modules, rank), num_weights * _NUM_WEIGHT_BYTES, described)

    def ref(self, number: int) -> AdapterRef:
        digest = hashlib.sha256(self.described + b"%d" % number).hexdigest()
        return AdapterRef(digest, f"{_SCHEME}{number}", self.num_bytes, self.ranks)


def dummy_number(ref: AdapterRef) -> int | None:
    """The number of a dummy adapter; None for an adapter with files."""
    return int(ref.uri.removeprefix(_SCHEME)) if ref.uri.startswith(_SCHEME) else None
