"""The rotary embedding that a config.json asks for, read as transformers reads it. Free of torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from punica_serve.base_model.model_files import PositiveFloat, PositiveInt, convert, refusal
from punica_serve.base_model.model_spec import Llama3RopeScaling, LongRopeScaling, RopeScaling, YarnScaling

#: Transformers' own, where config.json gives none.
_DEFAULT_THETA = 10000.0
#: Its default for the context on which a Phi-3 was trained first.
_PHI3_CONTEXT = 4096
#: Names of LongRoPE in configs of Phi-3.
_LONGROPE = ("longrope", "su", "yarn")
#: Fields by which other models scale, beside the rotation or instead of what is read here.
_FOREIGN = ("llama_4_scaling_beta", "short_mscale", "long_mscale")


@dataclass(frozen=True, slots=True)
class Rope:
    """The base of the frequencies and at most one scaling of them."""

    theta: float
    #: All frequencies are divided by this: "linear" scaling; 1 without.
    linear_factor: float = 1.0
    scaling: RopeScaling | None = None
    #: Elements of each head that are rotated, the first ones; None: all.
    rotary_dim: int | None = None


class _Holders(msgspec.Struct, frozen=True):
    """The two spellings of one object."""

    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None


class _Theta(msgspec.Struct, frozen=True):
    rope_theta: PositiveFloat


class _Linear(msgspec.Struct, frozen=True):
    factor: PositiveFloat


class _LongRope(msgspec.Struct, frozen=True):
    short_factor: tuple[PositiveFloat, ...]
    long_factor: tuple[PositiveFloat, ...]
    original_max_position_embeddings: Annotated[int, msgspec.Meta(ge=2)]
    factor: PositiveFloat | None = None
    attention_factor: PositiveFloat | None = None


class _Mscales(msgspec.Struct, frozen=True):
    mscale: PositiveFloat
    mscale_all_dim: PositiveFloat


class _Share(msgspec.Struct, frozen=True):
    partial_rotary_factor: Annotated[float, msgspec.Meta(gt=0, le=1)]


class _OriginalContext(msgspec.Struct, frozen=True):
    original_max_position_embeddings: PositiveInt


def read_rope(config: dict[str, Any], path: Path, *, max_position_embeddings: int) -> Rope:
    """The rotary embedding of a config.json, the file at ``path``.

    `rope_scaling` replaces `rope_parameters` as a whole where it holds anything. Inside either, `rope_theta` wins over
    the one beside it. Raises ModelRejected, which names the field.
    """
    name, given = _given(config, path)
    theta = _read_theta(config, given, path, name)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    _refuse_partial(config, given, path, name)
    if kind == "linear":
        return Rope(theta, linear_factor=convert(given, _Linear, path, within=name).factor)
    if isinstance(kind, str) and kind in _SCALINGS:
        original = _original_context(config, given, path, name, max_position_embeddings)
        return Rope(theta, scaling=_SCALINGS[kind]({**given, **original}, path, name, theta))
    raise refusal(
        path, name, f"has type {kind!r}; 'default', 'linear', {', '.join(map(repr, _SCALINGS))} are implemented"
    )


def read_longrope(config: dict[str, Any], path: Path, *, head_dim: int, max_position_embeddings: int) -> Rope:
    """The rotary embedding of a Phi-3, whose scalings all mean LongRoPE. Raises ModelRejected, as ``read_rope``."""
    name, given = _given(config, path)
    theta = _read_theta(config, given, path, name)
    rotary_dim = _rotary_dim(config, given, path, name, head_dim)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return Rope(theta, rotary_dim=rotary_dim)
    if kind not in _LONGROPE:
        raise refusal(path, name, f"has type {kind!r}; 'default' and 'longrope' are implemented for this model_type")
    if kind != "longrope" and "short_factor" not in given:
        field = "rope_type" if "rope_type" in given else "type"
        served = "'default' and 'longrope' are implemented for this model_type"
        raise refusal(path, f"{name}.{field}", f"is {kind!r}, and there is no `short_factor`; {served}")
    given = {"original_max_position_embeddings": _PHI3_CONTEXT, **given}
    if "original_max_position_embeddings" in config:
        given |= _original_context(config, given, path, name, max_position_embeddings)
    file = convert(given, _LongRope, path, within=name)
    for field in ("short_factor", "long_factor"):
        if len(getattr(file, field)) != rotary_dim // 2:
            reason = f"has {len(getattr(file, field))} numbers; {rotary_dim} elements of a head are rotated in pairs"
            raise refusal(path, f"{name}.{field}", reason)
    original = file.original_max_position_embeddings
    factor = file.factor or max_position_embeddings / original
    magnitude = file.attention_factor or _longrope_magnitude(factor, original)
    scaling = LongRopeScaling(file.short_factor, file.long_factor, original, magnitude)
    return Rope(theta, scaling=scaling, rotary_dim=rotary_dim)


def _given(config: dict[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """The name of the object that counts, and the object; an empty one if there is none."""
    holders = convert(config, _Holders, path)
    name = "rope_scaling" if holders.rope_scaling else "rope_parameters"
    given = holders.rope_scaling or holders.rope_parameters or {}
    for field, value in given.items():
        if isinstance(value, dict):
            raise refusal(path, f"{name}.{field}", "is an object; numbers for all layers alike are implemented here")
        if value and field in _FOREIGN:
            raise refusal(path, f"{name}.{field}", f"is {value!r}; only a scaling without it is implemented")
    return name, given


def _longrope_magnitude(factor: float, original: int) -> float:
    """The paper's factor of cos and sin."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _rotary_dim(config: dict[str, Any], given: dict[str, Any], path: Path, name: str, head_dim: int) -> int:
    holder, field = (given, f"{name}.partial_rotary_factor") if "partial_rotary_factor" in given else (config, "")
    part = holder.get("partial_rotary_factor")
    share = convert({"partial_rotary_factor": 1.0 if part is None else part}, _Share, path).partial_rotary_factor
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or not rotary_dim:
        reason = f"is {share}, which rotates {rotary_dim} of {head_dim} elements; an even number is implemented"
        raise refusal(path, field or "partial_rotary_factor", reason)
    return rotary_dim


def split_ropes(config: dict[str, Any], path: Path, window_theta: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rotary embeddings of full and of sliding layers, as two configs with one each, of a config like Gemma 3's.

    `rope_parameters` has both by layer type; the older `rope_scaling` and `rope_theta` are of full layers alone, and
    `rope_local_base_freq` of sliding ones. Here transformers does not read `original_max_position_embeddings` beside
    them.
    """
    given = convert(config, _Holders, path).rope_parameters or {}
    kinds = {"full_attention", "sliding_attention"}
    if set(given) - kinds or not all(isinstance(part, dict) for part in given.values() if part is not None):
        raise refusal(path, "rope_parameters", f"has {sorted(given)}; objects for {sorted(kinds)} are implemented")
    replaced = ("rope_parameters", "rope_scaling", "original_max_position_embeddings")
    rest = {name: value for name, value in config.items() if name not in replaced}
    _, scaling = _given({"rope_scaling": config.get("rope_scaling")}, path)
    full = {**rest, "rope_parameters": {**(given.get("full_attention") or {}), **scaling}}
    theta = config.get("rope_local_base_freq", window_theta)
    sliding = {**rest, "rope_theta": theta, "rope_parameters": given.get("sliding_attention") or {}}
    return full, sliding


def _read_theta(config: dict[str, Any], given: dict[str, Any], path: Path, name: str) -> float:
    if "rope_theta" in given:
        return convert(given, _Theta, path, within=name).rope_theta
    return convert({"rope_theta": config.get("rope_theta", _DEFAULT_THETA)}, _Theta, path).rope_theta


def _refuse_partial(config: dict[str, Any], given: dict[str, Any], path: Path, name: str) -> None:
    """Transformers' Llama ignores the field without a scaling; with one it computes too few frequencies and fails."""
    for place, holder in ((f"{name}.partial_rotary_factor", given), ("partial_rotary_factor", config)):
        if holder.get("partial_rotary_factor") not in (None, 1):
            raise refusal(path, place, f"is {holder['partial_rotary_factor']!r}; only 1 is implemented")


def _original_context(
    config: dict[str, Any], given: dict[str, Any], path: Path, name: str, max_position_embeddings: int
) -> dict[str, int]:
    """`original_max_position_embeddings`: the one beside the object wins over the one inside it."""
    field = "original_max_position_embeddings"
    if field in config:
        return {field: convert(config, _OriginalContext, path).original_max_position_embeddings}
    if field in given:
        return {field: convert(given, _OriginalContext, path, within=name).original_max_position_embeddings}
    return {field: max_position_embeddings}


def _read_llama3(given: dict[str, Any], path: Path, name: str, theta: float) -> Llama3RopeScaling:
    scaling = convert(given, Llama3RopeScaling, path, within=name)
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise refusal(path, f"{name}.high_freq_factor", "must be above low_freq_factor")
    return scaling


def _read_yarn(given: dict[str, Any], path: Path, name: str, theta: float) -> YarnScaling:
    if theta <= 1:
        raise refusal(path, "rope_theta", f"is {theta}; 'yarn' needs one above 1")
    if given.get("attn_factor", 1) != 1:
        reason = f"is {given['attn_factor']!r}, which transformers ignores and others multiply with"
        advice = "delete it to compute as transformers does, or write the whole factor of cos and sin as"
        raise refusal(path, f"{name}.attn_factor", f"{reason}; {advice} `attention_factor`")
    scaling = convert(given, YarnScaling, path, within=name)
    if scaling.attention_factor is None and (given.get("mscale") or given.get("mscale_all_dim")):
        mscales = convert(given, _Mscales, path, within=name)
        return replace(scaling, attention_factor=_mscale_ratio(mscales, scaling.factor))
    return scaling


def _mscale_ratio(mscales: _Mscales, factor: float) -> float:
    """The factor of cos and sin, as DeepSeek writes it."""
    growth = 0.1 * math.log(max(factor, 1.0))
    return (mscales.mscale * growth + 1.0) / (mscales.mscale_all_dim * growth + 1.0)


#: By `rope_type`: the scalings that count from the context that a model was trained on first.
_SCALINGS: dict[Any, Callable[[dict[str, Any], Path, str, float], RopeScaling]] = {
    "llama3": _read_llama3,
    "yarn": _read_yarn,
}
