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
    """The window of each layer; empty if none hides anything. Raises ModelRejected, which names the field."""
    file = convert(dict(raw), _Windows, path)
    types = _layer_types(file, rule, num_layers)
    if len(types) != num_layers or set(types) - {_FULL, _SLIDING}:
        reason = f"is {list(types)}; one of {_FULL!r} and {_SLIDING!r} for each of {num_layers} layers is implemented"
        raise refusal(path, "layer_types", reason)
    if _SLIDING not in types:
        return ()
    if file.sliding_window is None:
        raise refusal(path, "sliding_window", "is missing, though layers slide")
    if file.sliding_window >= max_position_embeddings and not file.layer_types and rule == "all":
        return ()
    return tuple(file.sliding_window if kind == _SLIDING else None for kind in types)


def _layer_types(file: _Windows, rule: WindowRule, num_layers: int) -> tuple[str, ...]:
    if (
        rule == "none"
        or (rule == "qwen" and not file.use_sliding_window)
        or (rule == "all" and not file.sliding_window)
    ):
        # Transformers ignores the types of models without windows; types that slide would still be a contradiction.
        return file.layer_types or (_FULL,) * num_layers
    if rule == "all":
        return (_SLIDING,) * num_layers
    if file.layer_types is not None:
        return file.layer_types
    if rule == "qwen":
        return tuple(_FULL if number < file.max_window_layers else _SLIDING for number in range(num_layers))
    return tuple(_SLIDING if (number + 1) % file.sliding_window_pattern else _FULL for number in range(num_layers))
