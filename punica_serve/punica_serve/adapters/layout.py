"""The contents of an adapter's weights file: every module with its rank and scaling.

Registration determines the modules and scalings from the configuration (``targets``). Later the AdapterRef carries the
scalings, and the file has the rest: its tensors' names give the modules, their shapes the ranks. So loading a
registered adapter needs no configuration.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from punica_serve.adapters.adapter import AdapterLayout, PairPlace, TensorPlace
from punica_serve.adapters.base_modules import PEFT_PREFIX
from punica_serve.adapters.matching import LoraTarget
from punica_serve.adapters.targets import updatable_modules
from punica_serve.adapters.text_tensors import TextTensors
from punica_serve.base_model.lora_layout import FUSED_GROUPS, LORA_GROUPS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected
from punica_serve.numbers import counted

_EMBEDDING = ".embed_tokens"


@dataclass(frozen=True, slots=True)
class ScaledModule:
    """A module that an adapter updates, as found in its file and AdapterRef."""

    layer: int
    module: str
    path: str
    rank: int
    scaling: float


def weight_name(path: str, side: Literal["A", "B"]) -> str:
    """PEFT's name for one half of a module's update."""
    if path.endswith(_EMBEDDING):
        return f"{PEFT_PREFIX}{path}.lora_embedding_{side}"
    return f"{PEFT_PREFIX}{path}.lora_{side}.weight"


def present_targets(
    targets: Iterable[LoraTarget], tensors: Mapping[str, TensorPlace], model: ModelConfig, *, may_lack: bool
) -> list[LoraTarget]:
    """The targets whose tensors are in the file: all of them, unless ``may_lack``. The file must hold no other tensors.

    Raises AdapterRejected, whose ``param`` is the tensor.
    """
    targets = list(targets)
    expected = {weight_name(target.path, side) for target in targets for side in ("A", "B")}
    unexpected = sorted(tensors.keys() - expected)
    present = []
    for target in targets:
        missing = [name for side in ("A", "B") if (name := weight_name(target.path, side)) not in tensors]
        if not missing:
            present.append(target)
        elif len(missing) == 1 or not may_lack:
            instead = f"; `{unexpected[0][:200]}` is there instead{_advice(unexpected[0], model)}" if unexpected else ""
            message = f"tensor `{missing[0]}` is missing, though the configuration targets its module{instead}"
            raise AdapterRejected(message, param=missing[0])
    if unexpected:
        raise AdapterRejected(
            f"tensor `{unexpected[0][:200]}` is not a lora_A or lora_B weight of a module that the configuration"
            f" targets in the base model's {counted(model.num_hidden_layers, 'layer')}{_advice(unexpected[0], model)}",
            param=unexpected[0],
        )
    if not present:
        raise AdapterRejected("it holds no tensors")
    return present


def _advice(tensor: str, model: ModelConfig) -> str:
    """What to do about a tensor that fits no target; the modules that there are, where it is of none of them."""
    parts = tensor.split(".")
    modules = model.spec.lora_shapes
    if any(module in parts for module in modules):
        return ""
    for group, separate in LORA_GROUPS.items():
        fused = FUSED_GROUPS[group]
        own, others = (fused, separate) if model.fused_projections else (separate, fused)
        if found := next((module for module in others if module in parts), None):
            return (
                f"; in the place of `{found}` the base model has {', '.join(own)}: train the adapter on this base"
                " model, or serve the one that it was trained on"
            )
    return f"; the base model has {', '.join(modules)}"


def scalings_of(targets: Iterable[LoraTarget]) -> tuple[float, ...]:
    """One scaling per module, in the order in which the model runs them; a single one if all are equal."""
    scalings = tuple(target.scaling for target in targets)
    return scalings[:1] if len(set(scalings)) == 1 else scalings


def modules_of_file(text: TextTensors, scalings: tuple[float, ...], model: ModelConfig) -> list[ScaledModule]:
    """The modules of a registered adapter. Raises AdapterRejected if its scalings don't fit the file."""
    tensors, found = text.tensors, list(_modules_in(text, model))
    if len(scalings) not in (1, len(found)) or 2 * len(found) != len(tensors):
        raise AdapterRejected(
            f"it was registered with {counted(len(scalings), 'scaling')} but has {counted(len(tensors), 'tensor')} for"
            f" {counted(len(found), 'module')} of the base model; register it again"
        )
    each = scalings if len(scalings) > 1 else scalings * len(found)
    return [
        ScaledModule(layer, module, path, rank, scaling)
        for (layer, module, path, rank), scaling in zip(found, each, strict=True)
    ]


def layout_of(
    modules: Iterable[LoraTarget | ScaledModule], tensors: Mapping[str, TensorPlace], model: ModelConfig
) -> AdapterLayout:
    """The positions of the modules' updates. Raises AdapterRejected for a tensor of the wrong shape."""
    shapes = model.spec.lora_shapes
    places = {}
    for each in modules:
        num_out, num_in = shapes[each.module]
        a = _checked(weight_name(each.path, "A"), tensors, (each.rank, num_in))
        b = _checked(weight_name(each.path, "B"), tensors, (num_out, each.rank))
        places[each.layer, each.module] = PairPlace(a, b, each.scaling)
    return AdapterLayout.of(places)


def _modules_in(text: TextTensors, model: ModelConfig) -> Iterator[tuple[int, str, str, int]]:
    """(layer, module, path, rank) of every module with both halves in the file."""
    tensors = text.tensors
    for layer, module, path in updatable_modules(model, text.stem):
        a, b = tensors.get(weight_name(path, "A")), tensors.get(weight_name(path, "B"))
        if a and b and a.shape:
            yield layer, module, path, a.shape[0]


def _checked(name: str, tensors: Mapping[str, TensorPlace], shape: tuple[int, int]) -> TensorPlace:
    tensor = tensors[name]
    if tensor.shape != shape:
        raise AdapterRejected(
            f"tensor `{name}` has shape {list(tensor.shape)}; the configuration's rank and the base model's"
            f" projection need {list(shape)}",
            param=name,
        )
    return tensor
