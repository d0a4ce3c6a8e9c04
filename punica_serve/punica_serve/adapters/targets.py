"""Which modules PEFT would adapt, with which rank and scaling.

Module paths are those of Hugging Face's LlamaForCausalLM, which PEFT matches against: "model.layers.0.mlp.up_proj".
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from punica_serve.adapters.peft_config import MAX_PATTERNS, PeftConfig, as_tuple, layers_regex, pattern_regex
from punica_serve.errors import AdapterRejected
from punica_serve.lora_layout import MAX_LORA_RANK
from punica_serve.model_config import ModelConfig

V = TypeVar("V")
D = TypeVar("D")

#: The block of a layer that holds each linear module.
_BLOCKS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}

#: All of an adapter's, and of another that is read meanwhile. re's own cache holds far fewer.
_MAX_COMPILED = 2 * MAX_PATTERNS

#: PEFT's target_modules for Llama when a configuration has none.
_DEFAULT_TARGETS = ("q_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """One linear module that the adapter updates."""

    layer: int
    module: str
    path: str
    rank: int
    alpha: float
    use_rslora: bool

    @property
    def scaling(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


def lora_targets(config: PeftConfig, model: ModelConfig) -> list[LoraTarget]:
    """The modules that PEFT would adapt, in the order in which the model runs them.

    Raises AdapterRejected where the configuration names what is not among the seven linear modules of a layer, or gives
    one a rank above MAX_LORA_RANK.
    """
    _check_layers(config, model)
    _check_module_names(config, model)
    targets = [
        LoraTarget(
            layer=layer,
            module=module,
            path=path,
            rank=_first_match(config.rank_pattern, path, config.r),
            alpha=_first_match(config.alpha_pattern, path, config.lora_alpha),
            use_rslora=config.use_rslora,
        )
        for layer, module, path in linear_modules(model)
        if config.targets_all_linear or _is_targeted(config, path)
        if not _matches(config.exclude_modules, path)
    ]
    if not targets:
        raise _refuse("target_modules", "and the fields that narrow it leave no linear module of the base model")
    _check_ranks(targets, config)
    return targets


def linear_modules(model: ModelConfig) -> Iterator[tuple[int, str, str]]:
    """(layer, module, path) of every linear module that an adapter may update."""
    for layer in range(model.num_hidden_layers):
        for module in model.linear_shapes:
            yield layer, module, f"model.layers.{layer}.{_BLOCKS[module]}.{module}"


def _other_modules(model: ModelConfig) -> Iterator[str]:
    """Paths of all modules that an adapter may not update."""
    yield from ("model", "model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head")
    for layer in range(model.num_hidden_layers):
        for name in ("", ".self_attn", ".mlp", ".mlp.act_fn", ".input_layernorm", ".post_attention_layernorm"):
            yield f"model.layers.{layer}{name}"


def _path_ends(path: str) -> Iterator[str]:
    """The path, and what follows each of its dots: all the names by which a list can mean it."""
    yield path
    while path := path.partition(".")[2]:
        yield path


def _matches(patterns: str | tuple[str, ...] | None, path: str) -> bool:
    """A string is a regular expression over the whole path; a list holds ends of paths."""
    if isinstance(patterns, str):
        return _compiled(patterns).fullmatch(path) is not None
    return not frozenset(patterns or ()).isdisjoint(_path_ends(path))


def _is_targeted(config: PeftConfig, path: str) -> bool:
    """Before exclude_modules, and for a target_modules that is not all-linear."""
    targets = _DEFAULT_TARGETS if config.target_modules is None else config.target_modules
    return _matches(targets, path) and _is_in_layers(config, path)


def _layer_indices(config: PeftConfig) -> tuple[int, ...]:
    layers = config.layers_to_transform
    return (layers,) if isinstance(layers, int) else layers or ()


def _is_in_layers(config: PeftConfig, path: str) -> bool:
    layers = _layer_indices(config)
    if not layers:
        return True
    patterns = as_tuple(config.layers_pattern) or (r"[^.]*",)
    match = next(filter(None, (_compiled(layers_regex(pattern)).match(path) for pattern in patterns)), None)
    return match is not None and match["idx"] is not None and int(match["idx"]) in layers


@lru_cache(_MAX_COMPILED)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


def _first_match(values: Mapping[str, V] | None, path: str, default: D) -> V | D:
    """The value of the first key that matches: PEFT's reading of rank_pattern and alpha_pattern."""
    matching = (value for pattern, value in (values or {}).items() if _compiled(pattern_regex(pattern)).match(path))
    return next(matching, default)


def _check_ranks(targets: list[LoraTarget], config: PeftConfig) -> None:
    for target in targets:
        if target.rank > MAX_LORA_RANK:
            field = "r" if _first_match(config.rank_pattern, target.path, None) is None else "rank_pattern"
            raise _refuse(field, f"gives `{target.path}` rank {target.rank}; at most {MAX_LORA_RANK} is served")


def _check_layers(config: PeftConfig, model: ModelConfig) -> None:
    num_layers = model.num_hidden_layers
    for layer in _layer_indices(config):
        if layer >= num_layers:
            raise _refuse(
                "layers_to_transform", f"names layer {layer}; the base model has layers 0 to {num_layers - 1}"
            )


def _check_module_names(config: PeftConfig, model: ModelConfig) -> None:
    """Every name means a linear module, and no expression means anything else."""
    if isinstance(config.target_modules, tuple):
        _check_listed_names(config.target_modules, config, model)
    elif isinstance(config.target_modules, str) and not config.targets_all_linear:
        for path in _other_modules(model):
            if _is_targeted(config, path) and not _matches(config.exclude_modules, path):
                raise _refuse("target_modules", f"matches `{path}`, which is no linear module of a layer")


def _check_listed_names(names: tuple[str, ...], config: PeftConfig, model: ModelConfig) -> None:
    paths = {path for _, _, path in linear_modules(model)}
    ends = {end for path in paths for end in _path_ends(path)}
    for name in names:
        if name not in ends:
            raise _refuse("target_modules", f"names `{name}`, which is no linear module of the base model's layers")
        # PEFT exempts full paths from layers_to_transform, but shortens long lists of them first and then does not.
        if name in paths and _layer_indices(config):
            raise _refuse("layers_to_transform", f"can't be used with the full path `{name}` in `target_modules`")


def _refuse(name: str, reason: str) -> AdapterRejected:
    return AdapterRejected(f"`{name}` {reason}", param=name)
