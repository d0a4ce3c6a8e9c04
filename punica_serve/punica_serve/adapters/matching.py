"""PEFT's matching of a configuration against the modules of a base model, field by field.

The configuration's regular expressions are compiled and run here, which may take unlimited time and memory, so
untrusted ones are matched by ``pattern_worker``, a process that can be killed.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from punica_serve.adapters.base_modules import BaseModules
from punica_serve.adapters.peft_config import PeftConfig, as_tuple
from punica_serve.base_model.lora_layout import FUSED_GROUPS, LORA_GROUPS, MAX_LORA_RANK
from punica_serve.errors import AdapterRejected
from punica_serve.errors.shortened import shortened

V = TypeVar("V")

#: PEFT's default target_modules for each architecture that is served and has one.
_DEFAULT_TARGETS = ("q_proj", "v_proj")

_MAX_SHOWN_NAMES = 5

#: Called with each field's name before the field is matched.
OnField = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """A module that the adapter updates."""

    #: 0 for the embedding and the head.
    layer: int
    module: str
    path: str
    rank: int
    alpha: float
    use_rslora: bool

    @property
    def scaling(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


@dataclass(frozen=True, slots=True)
class Matches:
    """The modules that a configuration selects in a base model."""

    #: In the order in which the model runs them; never empty.
    targets: tuple[LoraTarget, ...]
    #: Names without effect: PEFT still serves the adapter, but its owner may have meant another base model.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Module:
    """A module of the base model, linear or not."""

    path: str
    #: The number before the last parts of its path; None without one.
    layer: int | None
    #: The name of a module that an adapter may update; None for any other.
    linear: str | None = None

    @property
    def is_vocabulary(self) -> bool:
        """Whether it is the embedding or the head."""
        return self.linear is not None and self.layer is None


def match_targets(config: PeftConfig, base: BaseModules, on_field: OnField = lambda name: None) -> Matches:
    """The modules that PEFT would adapt in a base model. It takes as long as the expressions do.

    Raises AdapterRejected, whose ``param`` is the field.
    """
    modules = [_Module(path, layer, module) for layer, module, path in base.linear()]
    modules += [_Module(path, None, module) for module, path in base.vocabulary()]
    modules += [_Module(path, layer) for layer, path in base.others()]
    on_field("target_modules")
    _refuse_both_spellings(config, base)
    chosen = _targeted(config, modules)
    warnings = [*_unmatched_names(config, modules), *_missing_layers(config, base.num_layers)]
    on_field("layers_pattern")
    chosen = _in_layers(config, chosen)
    on_field("exclude_modules")
    is_excluded = _matcher(config.exclude_modules or (), "exclude_modules")
    chosen = [module for module in chosen if not is_excluded(module.path)]
    for module in chosen:
        if module.linear is None:
            reason = "which is no linear module of a layer, embedding or head"
            _refuse("target_modules", f"matches `{module.path}`, {reason}")
    if not chosen:
        _refuse("target_modules", "; ".join((_nothing_matches(config), *warnings, f"it has {', '.join(_names(base))}")))
    if config.ensure_weight_tying and any(module.is_vocabulary for module in chosen):
        _refuse("ensure_weight_tying", "can't be applied to the embedding or the head; train without it")
    if config.alora_invocation_tokens and any(module.linear == "embed_tokens" for module in chosen):
        _refuse("alora_invocation_tokens", "can't be applied to `embed_tokens`, neither here nor by PEFT")
    paths = [module.path for module in chosen]
    on_field("rank_pattern")
    ranks = _first_matches(config.rank_pattern or {}, paths, "rank_pattern")
    on_field("alpha_pattern")
    alphas = _first_matches(config.alpha_pattern or {}, paths, "alpha_pattern")
    _check_ranks(config, ranks)
    targets = (
        LoraTarget(
            layer=module.layer or 0,
            module=module.linear,
            path=module.path,
            rank=config.r if rank is None else rank,
            alpha=config.lora_alpha if alpha is None else alpha,
            use_rslora=bool(config.use_rslora),
        )
        for module, rank, alpha in zip(chosen, ranks.values(), alphas.values(), strict=True)
        if module.linear is not None
    )
    return Matches(tuple(targets), tuple(warnings))


def _names(base: BaseModules) -> Iterator[str]:
    yield from base.blocks
    yield from (module for module, _ in base.vocabulary())


def _nothing_matches(config: PeftConfig) -> str:
    """The start of a message, with the expression if it is one. Names of a list are warned of."""
    shown = f"({shortened(config.target_modules)}) " if isinstance(config.target_modules, str) else ""
    return f"{shown}and the fields that narrow it leave no linear module of the base model"


def _refuse_both_spellings(config: PeftConfig, base: BaseModules) -> None:
    """Refuses a list with a fused module and one of its parts: only the adapter's owner knows which was trained."""
    if not isinstance(config.target_modules, tuple):
        return
    last_parts = {name.rpartition(".")[2]: name for name in config.target_modules}
    for group, parts in LORA_GROUPS.items():
        (fused,), both = FUSED_GROUPS[group], [part for part in parts if part in last_parts]
        if len(parts) > 1 and fused in last_parts and both:
            known = ", ".join(module for module in (fused, *parts) if module in base.blocks)
            names = f"both `{shortened(last_parts[fused])}` and `{shortened(last_parts[both[0]])}`"
            _refuse("target_modules", f"names {names}, which are the same weights; the base model has {known} alone")


def _path_ends(path: str) -> Iterator[str]:
    """The path, and the rest after each of its dots: all names by which a list can refer to it."""
    yield path
    while path := path.partition(".")[2]:
        yield path


def _matcher(patterns: str | tuple[str, ...], field: str) -> Callable[[str], bool]:
    """The matcher of a field. A string is a regular expression for the whole path; a list holds ends of paths."""
    if isinstance(patterns, str):
        regex = _compiled(patterns, field)
        return lambda path: regex.fullmatch(path) is not None
    names = frozenset(patterns)
    return lambda path: not names.isdisjoint(_path_ends(path))


def _targeted(config: PeftConfig, modules: list[_Module]) -> list[_Module]:
    if config.targets_all_linear:
        return [module for module in modules if module.linear is not None and not module.is_vocabulary]
    names = config.target_modules
    if names is None:
        names = _DEFAULT_TARGETS
        linear = {module.linear for module in modules}
        if not linear.issuperset(names):
            _refuse("target_modules", "is missing, and PEFT has no default for this base model; name its modules")
    is_targeted = _matcher(names, "target_modules")
    return [module for module in modules if is_targeted(module.path)]


def _in_layers(config: PeftConfig, modules: list[_Module]) -> list[_Module]:
    """The modules in ``layers_to_transform``. PEFT also keeps a module that the list names by its full path.

    PEFT first shortens long lists, though, and then drops it, so such lists of linear modules are refused.
    """
    layers = frozenset(config.layers)
    if not layers:
        return modules
    full_paths = frozenset(as_tuple(config.target_modules))
    for module in modules:
        if module.linear is not None and "." in module.path and module.path in full_paths:
            reason = f"can't be used with the full path `{module.path}` in `target_modules`; leave out one of them"
            _refuse("layers_to_transform", reason)
    layer_of = _layer_finder(config)
    return [module for module in modules if module.path in full_paths or layer_of(module) in layers]


def _layer_finder(config: PeftConfig) -> Callable[[_Module], int | None]:
    """A function that finds a module's layer by ``layers_pattern``."""
    regexes = [
        _compiled(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.", "layers_pattern")
        for pattern in as_tuple(config.layers_pattern)
    ]
    if not regexes:
        return lambda module: module.layer

    def find(module: _Module) -> int | None:
        match = next(filter(None, (regex.match(module.path) for regex in regexes)), None)
        return None if match is None or match["idx"] is None else int(match["idx"])

    return find


def _first_matches(values: Mapping[str, V], paths: list[str], field: str) -> dict[str, V | None]:
    """Path -> value of the first key that matches it, which is how PEFT reads rank_pattern and alpha_pattern."""
    regexes = [(_compiled(rf"(.*\.)?({key})$", field, shown=key), value) for key, value in values.items()]
    return {path: next((value for regex, value in regexes if regex.match(path)), None) for path in paths}


def _compiled(regex: str, field: str, *, shown: str | None = None) -> re.Pattern[str]:
    with _explained(field, regex if shown is None else shown):
        return re.compile(regex)


@contextmanager
def _explained(field: str, shown: str) -> Iterator[None]:
    """Adds the field's name to errors about a regular expression that Python rejects."""
    try:
        yield
    except (re.error, OverflowError, RecursionError) as error:
        advice = ""
        if "global flags" in str(error):
            advice = "; PEFT can't match it either: write (?i:...) around the letters that may be of either case"
        raise AdapterRejected(
            f"`{field}` has an invalid regular expression {shortened(repr(shown))}: {error}{advice}", param=field
        ) from error


def _check_ranks(config: PeftConfig, ranks: Mapping[str, int | None]) -> None:
    for path, from_pattern in ranks.items():
        rank = config.r if from_pattern is None else from_pattern
        if rank > MAX_LORA_RANK:
            field = "r" if from_pattern is None else "rank_pattern"
            _refuse(field, f"gives `{path}` rank {rank}; at most {MAX_LORA_RANK} is served: train a lower one")


def _unmatched_names(config: PeftConfig, modules: Iterable[_Module]) -> Iterator[str]:
    if isinstance(config.target_modules, tuple):
        ends = {end for module in modules for end in _path_ends(module.path)}
        if unmatched := [name for name in config.target_modules if name not in ends]:
            yield f"`target_modules` names {_listed(unmatched)}, which the base model does not have"


def _missing_layers(config: PeftConfig, num_layers: int) -> Iterator[str]:
    if missing := [str(layer) for layer in config.layers if layer >= num_layers]:
        yield f"`layers_to_transform` names {_listed(missing)}; the base model has layers 0 to {num_layers - 1}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"`{shortened(name)}`" for name in names[:_MAX_SHOWN_NAMES])
    num_more = len(names) - _MAX_SHOWN_NAMES
    return f"{shown} and {num_more} more" if num_more > 0 else shown


def _refuse(field: str, reason: str) -> NoReturn:
    raise AdapterRejected(f"`{field}` {reason}", param=field)
