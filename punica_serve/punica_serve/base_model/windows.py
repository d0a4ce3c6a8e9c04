"""The sliding windows of a model's layers, read as transformers reads them. Free of torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from punica_serve.base_model.model_files import PositiveInt, convert, refusal

#: The layers to which `sliding_window` applies: none; all; those that `layer_types` or the architecture's own rule
#: says (Qwen: from `max_window_layers` on, where `use_sliding_window` is set; Gemma: all but each n-th).
WindowRule = Literal["none", "all", "qwen", "gemma"]

_FULL, _SLIDING = "full_attention", "sliding_attention"


class _Windows(msgspec.Struct, frozen=True):
    sliding_window: PositiveInt | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    sliding_window_pattern: PositiveInt = 6
    layer_types: tuple[str, ...] | None = None


def read_windows(
    raw: Mapping[str, Any], path: Path, *, rule: WindowRule, num_layers: int, max_position_embeddings: int
) -> tuple[int | None, ...]:
    """The window of each layer; empty if no layer has one. Raises ModelRejected, which names the field."""
    file = convert(dict(raw), _Windows, path)
    if rule == "none" and file.sliding_window is not None and file.sliding_window < max_position_embeddings:
        reason = f"is {file.sliding_window}; only None, or max_position_embeddings and more, is implemented"
        raise refusal(path, "sliding_window", reason)
    types = _layer_types(file, rule, num_layers, path)
    if _SLIDING not in types:
        return ()
    if file.sliding_window is None:
        raise refusal(path, "sliding_window", "is None, though `layer_types` has layers that slide")
    if rule == "all" and file.sliding_window >= max_position_embeddings:
        return ()
    return tuple(file.sliding_window if kind == _SLIDING else None for kind in types)


def _layer_types(file: _Windows, rule: WindowRule, num_layers: int, path: Path) -> tuple[str, ...]:
    implied, given = _implied_types(file, rule, num_layers), file.layer_types
    if given is None or given == implied:
        return implied
    is_free = rule == "gemma" or (rule == "qwen" and file.use_sliding_window)
    if len(given) != num_layers or set(given) - {_FULL, _SLIDING}:
        reason = f"one of {_FULL!r} and {_SLIDING!r} for each of {num_layers} layers is implemented"
        raise refusal(path, "layer_types", f"is {list(given)}; {reason}")
    if not is_free:
        raise refusal(path, "layer_types", f"is {list(given)}; only {implied[0]!r} is implemented with these windows")
    return given


def _implied_types(file: _Windows, rule: WindowRule, num_layers: int) -> tuple[str, ...]:
    """Layer types that transformers assumes without `layer_types`."""
    if rule == "gemma":
        return tuple(_SLIDING if (number + 1) % file.sliding_window_pattern else _FULL for number in range(num_layers))
    first = {"none": num_layers, "all": 0, "qwen": file.max_window_layers if file.use_sliding_window else num_layers}
    if file.sliding_window is None:
        return (_FULL,) * num_layers
    return tuple(_SLIDING if number >= first[rule] else _FULL for number in range(num_layers))
