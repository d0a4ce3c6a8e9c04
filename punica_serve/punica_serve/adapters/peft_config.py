"""adapter_config.json, checked.

``parse_peft_config`` sorts the fields of PEFT's LoraConfig into three kinds, and refuses by name what is in none:

- applied: the fields of ``PeftConfig``, and peft_type, task_type and init_lora_weights, of which few values are right;
- without effect on a saved adapter, ``_NO_EFFECT``: accepted whatever they say;
- everything else, known to PEFT or not: accepted only when empty (null, false, "", [], {}, 0), `bias` also when "none".
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from punica_serve.adapters.regex_cost import MAX_WAYS, num_ways
from punica_serve.errors import AdapterRejected

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
LayerIndex = Annotated[int, msgspec.Meta(ge=0)]

#: The target_modules that stands for every linear module but the output layer.
ALL_LINEAR = "all-linear"

#: Fields that matter to training, to the saving program, or only beside fields that are refused.
_NO_EFFECT = frozenset(
    {
        "auto_mapping",
        "corda_config",  # of init_lora_weights, which is checked itself; so are eva, lora_ga and loftq
        "ensure_weight_tying",  # acts on embeddings, which are refused as targets
        "eva_config",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",  # of megatron_config
        "peft_version",
        "qalora_group_size",  # of use_qalora
        "revision",
        "runtime_config",  # PEFT drops it on loading
    }
)

#: PEFT turns an empty object here into a default configuration, and so the feature on: only null leaves it off.
_OFF_ONLY_WHEN_NULL = frozenset({"arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "velora_config"})

#: Initialisations that leave the base model as it is. The others (pissa, olora, corda, loftq, lora_ga) subtract from it
#: what they put into the adapter, so that the saved adapter is wrong on the base model itself.
_PLAIN_INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal", "mica")


#: Regular expressions of one adapter: a rank and an alpha for every linear module of a model of 126 layers. Each is
#: compiled, and tried on each module, which for more of them takes minutes.
MAX_PATTERNS = 2_000


class PeftConfig(msgspec.Struct, frozen=True):
    """What of an adapter_config.json decides how the adapter is applied. Names and defaults are PEFT's."""

    r: PositiveInt = 8
    lora_alpha: float = 8.0
    #: Scale by alpha / sqrt(r), not alpha / r (Kalajdzievski, 2023).
    use_rslora: bool = False
    #: Regular expression over the end of a module's path -> its rank. The first that matches counts.
    rank_pattern: dict[str, PositiveInt] | None = None
    alpha_pattern: dict[str, float] | None = None
    #: Ends of module paths, or one regular expression over the whole path, or ALL_LINEAR.
    target_modules: str | tuple[str, ...] | None = None
    exclude_modules: str | tuple[str, ...] | None = None
    #: None or empty: all.
    layers_to_transform: LayerIndex | tuple[LayerIndex, ...] | None = None
    #: Regular expressions for what stands before the layer's index; any by default.
    layers_pattern: str | tuple[str, ...] | None = None
    base_model_name_or_path: str | None = None

    @property
    def targets_all_linear(self) -> bool:
        return isinstance(self.target_modules, str) and self.target_modules.lower() == ALL_LINEAR


def parse_peft_config(text: bytes) -> PeftConfig:
    """Checks the text of an adapter_config.json. Raises AdapterRejected, whose ``param`` is the field."""
    raw = _read_object(text)
    _check_kind(raw)
    _refuse_unapplied(raw)
    config = _convert(raw)
    _check_selection(config)
    _check_patterns(config)
    return config


def pattern_regex(pattern: str) -> str:
    """The regular expression that PEFT makes of a key of rank_pattern or alpha_pattern."""
    return rf"(.*\.)?({pattern})$"


def layers_regex(pattern: str) -> str:
    """The regular expression that PEFT makes of a layers_pattern."""
    return rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\."


def _refuse(name: str, reason: str) -> AdapterRejected:
    return AdapterRejected(f"`{name}` {reason}", param=name)


def _read_object(text: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(text)
        # The first is the stricter one, and keeps the last of two fields in silence.
        json.loads(text, object_pairs_hook=_unique)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise AdapterRejected(f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise AdapterRejected("it must hold a JSON object")
    return document


def _unique(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """The last of two would count, with PEFT too; which of them the adapter was trained with, its owner alone knows."""
    by_name = dict(fields)
    if len(by_name) < len(fields):
        name, _ = Counter(name for name, _ in fields).most_common(1)[0]
        raise _refuse(_shown(name, quote=False), "is there twice; leave the one that the adapter was trained with")
    return by_name


def _check_kind(raw: dict[str, Any]) -> None:
    if raw.get("peft_type") != "LORA":
        raise _refuse("peft_type", f"is {_shown(raw.get('peft_type'))}; only 'LORA' is served")
    if raw.get("task_type") not in (None, "CAUSAL_LM"):
        raise _refuse("task_type", f"is {_shown(raw['task_type'])}; only 'CAUSAL_LM' is served")
    init = raw.get("init_lora_weights", True)
    plain = init.lower() if isinstance(init, str) else init
    if not isinstance(plain, bool | str) or plain not in _PLAIN_INITIALISATIONS:
        raise _refuse(
            "init_lora_weights",
            f"is {_shown(init)}, which also changes the base model's weights; convert the adapter by PEFT's"
            " save_pretrained(..., path_initial_model_for_weight_conversion=...)",
        )


def _refuse_unapplied(raw: dict[str, Any]) -> None:
    applied = {*PeftConfig.__struct_fields__, "peft_type", "task_type", "init_lora_weights"}
    for name, value in raw.items():
        if name in applied or name in _NO_EFFECT or (name == "bias" and value == "none"):
            continue
        if value is not None if name in _OFF_ONLY_WHEN_NULL else value:
            raise _refuse(_shown(name, quote=False), f"is {_shown(value)}, which would not be applied as PEFT does")


def _shown(value: object, *, quote: bool = True) -> str:
    """A value of the file in a message, however long it is."""
    text = repr(value) if quote else str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _convert(raw: dict[str, Any]) -> PeftConfig:
    try:
        return msgspec.convert(raw, PeftConfig)
    except msgspec.ValidationError as error:
        message = str(error)
        found = re.search(r"`\$\.(\w+)", message)
        name = found.group(1) if found else "r"
        raise _refuse(name, f"is {_shown(raw.get(name))}: {message}") from error


def _check_selection(config: PeftConfig) -> None:
    """PEFT's own rules on which fields go together."""
    if isinstance(config.target_modules, str):
        for name in ("layers_to_transform", "layers_pattern"):
            if getattr(config, name) is not None:
                raise _refuse(name, "can't be used when `target_modules` is a string")
    if config.layers_pattern and config.layers_to_transform is None:
        raise _refuse("layers_pattern", "needs `layers_to_transform`")


def _check_patterns(config: PeftConfig) -> None:
    """Every regular expression compiles and is soon matched, so that whoever matches with it later need not care."""
    ways = 0
    for number, (name, regex) in enumerate(_regexes(config), 1):
        if number > MAX_PATTERNS:
            raise _refuse(name, f"and the like hold more than {MAX_PATTERNS} patterns together; use fewer")
        try:
            ways += num_ways(regex)
            if ways <= MAX_WAYS:
                re.compile(regex)
        except (re.error, OverflowError, RecursionError) as error:
            raise _refuse(name, f"has a broken regular expression {_shown(regex)}: {error}") from error
        if ways > MAX_WAYS:
            raise _refuse(name, f"may take too long to match with {_shown(regex)}; name modules or use fewer wildcards")


def _regexes(config: PeftConfig) -> Iterator[tuple[str, str]]:
    """(field, regular expression) of all that will be matched against paths."""
    yield from (("rank_pattern", pattern_regex(pattern)) for pattern in config.rank_pattern or ())
    yield from (("alpha_pattern", pattern_regex(pattern)) for pattern in config.alpha_pattern or ())
    yield from (("layers_pattern", layers_regex(pattern)) for pattern in as_tuple(config.layers_pattern))
    for name in ("target_modules", "exclude_modules"):
        if isinstance(pattern := getattr(config, name), str):
            yield name, pattern


def as_tuple(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """One string is a list of one; none, or an empty one, is an empty list."""
    return (value,) if isinstance(value, str) and value else tuple(value or ())
