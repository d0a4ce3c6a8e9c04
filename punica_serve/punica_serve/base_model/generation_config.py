"""A model's own defaults: which fields of generation_config.json are applied, and which are not. Free of torch.

Each field that transformers knows is in exactly one of the three tables below: applied, without effect here, or not
implemented although it would change answers.
"""

import os
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from punica_serve.base_model.model_files import convert, read_object, refusal
from punica_serve.protocol.sampling_ranges import RANGES

_TokenId = Annotated[int, msgspec.Meta(ge=0)]
_StopString = Annotated[str, msgspec.Meta(min_length=1)]
#: A field that is a sampling parameter -> the parameter, whose range it must keep.
_PARAMETERS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
}

#: How transformers computes, caches or reports, and fields of other kinds of models: the same answer with and without.
WITHOUT_EFFECT = frozenset(
    (
        # The prompt's tokens are the tokenizer's, and padding there is none.
        "bos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "use_cache",
        "cache_implementation",
        "cache_config",
        "max_cache_len",
        "low_memory",
        "prefill_chunk_size",
        "compile_config",
        "disable_compile",
        "continuous_batching_config",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
        "return_dict_in_generate",
        # They guard against logits that are not finite, or scale all alike.
        "remove_invalid_values",
        "renormalize_logits",
        # Speculation: faster, with the same answer.
        "is_assistant",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "prompt_lookup_num_tokens",
        "max_matching_ngram_size",
        "assistant_early_exit",
        "assistant_lookbehind",
        "target_lookbehind",
        "assistant_ensemble_weight",
        "speculation_type",
        "use_mtp",
        "transformers_version",
        "_from_model_config",
    )
)

#: Not implemented -> the values, beside null, that ask for nothing.
NOT_IMPLEMENTED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids"), ([],)),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0,)),
    "encoder_repetition_penalty": (1,),
    "sequence_bias": ({}, []),
    "guidance_scale": (1,),
    "watermarking_config": (),
    "token_healing": (False,),
    "min_length": (0,),
    "max_length": (),
    "max_time": (),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    **dict.fromkeys(("constraints", "force_words_ids"), ([],)),
    # Beam search:
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    # Sampling:
    "typical_p": (1,),
    "top_h": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
_OF_BEAM_SEARCH = ("num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping")
_OF_SAMPLING = ("typical_p", "top_h", "epsilon_cutoff", "eta_cutoff")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The model's choices where a request makes none."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    #: None: as many as the context has room for.
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    #: Fields that would change answers and are not implemented, each as "`num_beams` of generation_config.json is 4".
    not_applied: tuple[str, ...] = ()


class _GenerationFile(msgspec.Struct, frozen=True):
    """The fields that are applied; null counts as left out."""

    eos_token_id: _TokenId | tuple[_TokenId, ...] | None = None
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    #: Transformers samples from the 50 most likely tokens unless the file says otherwise; a server that lets its users
    #: choose starts from all of them.
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    max_new_tokens: int | None = None
    stop_strings: _StopString | tuple[_StopString, ...] = ()


#: Without `do_sample` the most likely token is taken, whatever the file says of sampling.
_GREEDY = _GenerationFile(temperature=0.0)
#: The fields that are applied.
APPLIED = frozenset(_GenerationFile.__struct_fields__)


def read_generation_defaults(
    config: dict[str, Any],
    config_path: Path,
    *,
    eos_token_id: int | tuple[int, ...] | None,
    vocab_size: int,
    max_position_embeddings: int,
) -> GenerationDefaults:
    """The defaults of the model whose config.json is ``config``, the file at ``config_path``.

    They are in the generation_config.json beside it or, where there is none, in config.json itself. ``eos_token_id`` is
    config.json's, for a file that names no end of sequence. Raises ModelRejected, which names the file and the field.
    """
    path = config_path.with_name("generation_config.json")
    raw = config
    if os.path.exists(path):
        raw = read_object(path)
    else:
        path = config_path
    raw = {name: value for name, value in raw.items() if value is not None}
    file = convert(raw, _GenerationFile, path)
    for name, parameter in _PARAMETERS.items():
        if name in raw and not RANGES[parameter].holds(getattr(file, name)):
            raise refusal(path, name, f"is {getattr(file, name)}; it must be {RANGES[parameter]}")
    drawn = file if file.do_sample else _GREEDY
    said, said_in = (eos_token_id, config_path) if file.eos_token_id is None else (file.eos_token_id, path)
    return GenerationDefaults(
        eos_token_ids=_eos_token_ids(said, vocab_size, said_in),
        temperature=drawn.temperature,
        top_p=drawn.top_p,
        top_k=drawn.top_k,
        min_p=drawn.min_p,
        repetition_penalty=file.repetition_penalty,
        min_tokens=file.min_new_tokens,
        max_tokens=file.max_new_tokens,
        stop=(file.stop_strings,) if isinstance(file.stop_strings, str) else file.stop_strings,
        not_applied=tuple(_not_applied(raw, path.name, max_position_embeddings)),
    )


def _not_applied(raw: dict[str, Any], file_name: str, max_position_embeddings: int) -> Iterator[str]:
    """The fields that would change answers. ``raw`` is a file without its nulls."""
    idle = {
        *(() if _asks(raw, "num_beams") or _asks(raw, "force_words_ids") else _OF_BEAM_SEARCH),
        *(() if raw.get("do_sample") else _OF_SAMPLING),
        *(("max_length",) if "max_new_tokens" in raw else ()),
        *(("min_length",) if "min_new_tokens" in raw else ()),
    }
    for name in NOT_IMPLEMENTED:
        if name in idle or not _asks(raw, name):
            continue
        # Llama's own files often give the context's length, which ends answers here too.
        length = raw[name]
        if name == "max_length" and isinstance(length, int) and length >= max_position_embeddings:
            continue
        yield f"`{name}` of {file_name} is {reprlib.repr(raw[name])}"


def _asks(raw: dict[str, Any], name: str) -> bool:
    return name in raw and raw[name] not in NOT_IMPLEMENTED[name]


def _eos_token_ids(said: int | tuple[int, ...] | None, vocab_size: int, path: Path) -> tuple[int, ...]:
    token_ids = () if said is None else (said,) if isinstance(said, int) else said
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise refusal(path, "eos_token_id", f"is {token_id}, outside the vocabulary of {vocab_size}")
    return token_ids
