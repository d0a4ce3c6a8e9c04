"""Reads and checks adapter_config.json.

``parse_peft_config`` sorts the fields of PEFT's LoraConfig into three kinds, and refuses all others by name:

- applied: the fields of ``PeftConfig``, and peft_type and task_type, which allow few values;
- without effect on a saved adapter, ``_NO_EFFECT``: accepted with any value;
- everything else, known to PEFT or not: accepted only when empty (null, false, "", [], {}, 0).

Regular expressions are only measured here. ``matching`` compiles them, in a process that can be killed.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from punica_serve.errors import AdapterRejected
from punica_serve.learned_types import learned
from punica_serve.protocol.base import TokenId

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
LayerIndex = Annotated[int, msgspec.Meta(ge=0)]

#: Fields that may hold many names or numbers.
_FIELDS_OF_NAMES = (
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
)

#: The value of target_modules that means every linear module except the output layer.
ALL_LINEAR = "all-linear"

#: Fields that matter only to training, to the program that saved them, or together with fields that are refused.
_NO_EFFECT = frozenset(
    {
        "bias",  # trains biases; PEFT saves those that the base has, and a file that holds any is refused
        "corda_config",  # belongs to init_lora_weights, which is checked itself; so do eva, lora_ga and loftq
        "eva_config",
        "fan_in_fan_out",  # PEFT turns it off for Llama's linear modules
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",  # belongs to megatron_config
        "peft_version",
        "qalora_group_size",  # belongs to use_qalora
        "revision",
        "runtime_config",  # PEFT drops it on loading
    }
)

#: PEFT turns an empty object here into a default configuration, which enables the feature: only null disables it.
_OFF_ONLY_WHEN_NULL = frozenset({"arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "velora_config"})

#: Initialisations that leave the base model unchanged. The others (pissa, olora, corda, loftq, lora_ga) subtract from
#: it what they put into the adapter, so the saved adapter is wrong on the original base model.
_PLAIN_INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal", "mica")
#: PEFT knows the other names in small letters only.
_IN_ANY_CASE = ("gaussian", "mica")

_CONVERSION_ADVICE = (
    "convert the adapter with PEFT's save_pretrained(..., path_initial_model_for_weight_conversion=...)"
)
#: PEFT can't convert these: LoftQ rounds the base's weights, which no adapter can undo.
_LOFTQ_ADVICE = (
    "it fits only the weights that LoftQ left in the base: save those with the base's own save_pretrained, serve them"
    " as the base model, and set `init_lora_weights` to true here"
)

#: Names in a list, or keys of rank_pattern or alpha_pattern. A 126-layer model has 882 linear modules.
MAX_NAMES = 2_000

#: Characters of one regular expression: room for the full paths of 200 modules. A list may hold more.
MAX_PATTERN_CHARS = 10_000

#: Characters of the base model's name: room for any path. The registry keeps it, and lists and logs repeat it.
MAX_BASE_NAME_CHARS = 4_096


class AutoMapping(msgspec.Struct, frozen=True):
    """The words of PEFT about the base model, where it was not told the task."""

    base_model_class: str | None = None


class PeftConfig(msgspec.Struct, frozen=True):
    """The fields of adapter_config.json that decide how the adapter is applied, with PEFT's names and defaults."""

    r: PositiveInt = 8
    lora_alpha: float = 8.0
    #: Scale by alpha / sqrt(r), not alpha / r (Kalajdzievski, 2023).
    use_rslora: bool | None = False
    #: Regular expression for the end of a module's path -> its rank. The first match counts.
    rank_pattern: dict[str, PositiveInt] | None = None
    alpha_pattern: dict[str, float] | None = None
    #: Ends of module paths, one regular expression for the whole path, or ALL_LINEAR.
    target_modules: str | tuple[str, ...] | None = None
    exclude_modules: str | tuple[str, ...] | None = None
    #: None or empty means all.
    layers_to_transform: LayerIndex | tuple[LayerIndex, ...] | None = None
    #: Regular expressions for the path before the layer's index; any by default.
    layers_pattern: str | tuple[str, ...] | None = None
    base_model_name_or_path: str | None = None
    auto_mapping: AutoMapping | None = None
    #: Whether one update serves embedding and head. It matters only to adapters that update either.
    ensure_weight_tying: bool | None = False
    #: The tokens that invoke an activated adapter. None or empty: it is always active.
    alora_invocation_tokens: tuple[TokenId, ...] | None = None
    #: How the adapter was initialised. Values that can't be served were refused before.
    init_lora_weights: bool | str = True

    @property
    def may_lack_modules(self) -> bool:
        """Whether targeted modules may be missing: EVA removes all ranks from some modules but may still target them;
        PEFT gives them an update of zero.
        """
        return self.init_lora_weights == "eva"

    @property
    def targets_all_linear(self) -> bool:
        return isinstance(self.target_modules, str) and self.target_modules.lower() == ALL_LINEAR

    @property
    def layers(self) -> tuple[int, ...]:
        """``layers_to_transform``; empty means all."""
        layers = self.layers_to_transform
        return (layers,) if isinstance(layers, int) else layers or ()

    @property
    def has_expressions(self) -> bool:
        """Whether matching compiles a regular expression. Lists of names are compared directly."""
        is_expression = isinstance(self.target_modules, str) and not self.targets_all_linear
        return bool(
            is_expression
            or (self.exclude_modules and isinstance(self.exclude_modules, str))
            or self.rank_pattern
            or self.alpha_pattern
            or (self.layers and self.layers_pattern)
        )


def parse_peft_config(text: bytes) -> PeftConfig:
    """Parses and checks an adapter_config.json. Raises AdapterRejected, whose ``param`` is the field."""
    raw = _read_object(text)
    _check_kind(raw)
    _refuse_unapplied(raw)
    config = _convert(raw)
    _check_selection(config)
    _check_lengths(config)
    return config


def _refuse(name: str, reason: str) -> AdapterRejected:
    return AdapterRejected(f"`{name}` {reason}", param=name)


def _read_object(text: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(text)
        # Python's parser comes first: msgspec, which is stricter, silently keeps the last of two equal fields.
        twice = json.loads(text, object_pairs_hook=_find_twice)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise AdapterRejected(f"it is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise AdapterRejected("it must hold a JSON object")
    if isinstance(twice, _Twice):
        raise twice.refusal()
    return document


@dataclass(frozen=True, slots=True)
class _Twice:
    """A key that an object holds twice, with the names that lead to it, outermost first.

    The last one would count, with PEFT too; only the adapter's owner knows which one it was trained with.
    """

    path: tuple[str, ...]

    def refusal(self) -> AdapterRejected:
        *outer, name = (_shown(part, quote=False) for part in self.path)
        found = f"`{'.'.join(outer)}` has `{name}` twice" if outer else f"`{name}` is there twice"
        return AdapterRejected(f"{found}; keep the one that the adapter was trained with", param=self.path[0][:200])


def _find_twice(fields: list[tuple[str, Any]]) -> _Twice | None:
    """Replaces an object that json has read: only a duplicate key in it, or in one below it, is kept."""
    if len(dict(fields)) < len(fields):
        name, _ = Counter(name for name, _ in fields).most_common(1)[0]
        return _Twice((name,))
    inner = ((name, _twice_in(value)) for name, value in fields)
    return next((_Twice((name, *twice.path)) for name, twice in inner if twice), None)


def _twice_in(value: object) -> _Twice | None:
    if isinstance(value, list):
        return next(filter(None, map(_twice_in, value)), None)
    return value if isinstance(value, _Twice) else None


def _check_kind(raw: dict[str, Any]) -> None:
    if raw.get("peft_type") != "LORA":
        raise _refuse("peft_type", f"is {_shown(raw.get('peft_type'))}; only 'LORA' is served")
    if raw.get("task_type") not in (None, "CAUSAL_LM"):
        raise _refuse("task_type", f"is {_shown(raw['task_type'])}; only 'CAUSAL_LM' is served")
    init = raw.get("init_lora_weights", True)
    plain = init.lower() if isinstance(init, str) else init
    if not isinstance(plain, bool | str) or plain not in _PLAIN_INITIALISATIONS:
        advice = _LOFTQ_ADVICE if plain == "loftq" else _CONVERSION_ADVICE
        raise _refuse("init_lora_weights", f"is {_shown(init)}, which also changes the base model's weights; {advice}")
    if plain != init and plain not in _IN_ANY_CASE:
        raise _refuse("init_lora_weights", f"is {_shown(init)}, which PEFT does not know; write {_shown(plain)}")


def _refuse_unapplied(raw: dict[str, Any]) -> None:
    applied = {*PeftConfig.__struct_fields__, "peft_type", "task_type"}
    for name, value in raw.items():
        if name in applied or name in _NO_EFFECT:
            continue
        if value is not None if name in _OFF_ONLY_WHEN_NULL else value:
            raise _refuse(_shown(name, quote=False), f"is {_shown(value)}, which can't be applied as PEFT does")


def _shown(value: object, *, quote: bool = True) -> str:
    """A value from the file, shortened for a message."""
    text = repr(value) if quote else str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _convert(raw: dict[str, Any]) -> PeftConfig:
    try:
        return msgspec.convert(raw, learned(PeftConfig))
    except msgspec.ValidationError as error:
        message = str(error)
        found = re.search(r"`\$\.(\w+)", message)
        name = found.group(1) if found else "r"
        raise _refuse(name, f"is {_shown(raw.get(name))}: {message}") from error


def _check_selection(config: PeftConfig) -> None:
    """Checks PEFT's own rules on which fields go together."""
    if isinstance(config.target_modules, str):
        for name in ("layers_to_transform", "layers_pattern"):
            if getattr(config, name) is not None:
                raise _refuse(name, "can't be used when `target_modules` is a string")
    if config.layers_pattern and config.layers_to_transform is None:
        raise _refuse("layers_pattern", "needs `layers_to_transform`")


def _check_lengths(config: PeftConfig) -> None:
    """Refuses fields with more names, or longer names and expressions, than any model needs."""
    base_name = config.base_model_name_or_path or ""
    if len(base_name) > MAX_BASE_NAME_CHARS:
        reason = f"has {len(base_name)} characters; the limit is {MAX_BASE_NAME_CHARS}"
        raise _refuse("base_model_name_or_path", reason)
    for name in _FIELDS_OF_NAMES:
        value = getattr(config, name)
        if isinstance(value, tuple | dict) and len(value) > MAX_NAMES:
            raise _refuse(
                name,
                f"has {len(value)} entries, more than the limit of {MAX_NAMES}; use shorter names that"
                " match several modules each",
            )
    for name, pattern in _expressions(config):
        if len(pattern) > MAX_PATTERN_CHARS:
            advice = f"the limit is {MAX_PATTERN_CHARS}, so write a shorter one or a list of names"
            raise _refuse(name, f"has an expression of {len(pattern)} characters; {advice}")


def _expressions(config: PeftConfig) -> Iterator[tuple[str, str]]:
    """(field, regular expression) pairs."""
    for name in ("target_modules", "exclude_modules"):
        if isinstance(pattern := getattr(config, name), str):
            yield name, pattern
    for name in ("rank_pattern", "alpha_pattern"):
        yield from ((name, key) for key in getattr(config, name) or ())
    yield from (("layers_pattern", pattern) for pattern in as_tuple(config.layers_pattern))


def as_tuple(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """A string becomes a list of one; None and the empty string become an empty list."""
    return (value,) if isinstance(value, str) and value else tuple(value or ())
