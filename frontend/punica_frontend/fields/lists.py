"""Which unknown fields are ignored, and which values ask for nothing. docs/api.md lists them for clients."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Fields that are ignored with any value, and why that does not change the answer.
HINTS: Mapping[str, str] = {
    "user": "names the end user; the API key says whose request it is",
    "safety_identifier": "names the end user; the API key says whose request it is",
    "store": "nothing is stored",
    "metadata": "belongs to what is stored",
    "service_tier": "there is one tier",
    "prompt_cache_key": "says how a cache finds a prompt",
    "prompt_cache_retention": "says how long a cache keeps a prompt",
    "prompt_cache_options": "says how a cache keeps a prompt",
    "parallel_tool_calls": "says how to call tools, which are not supported",
    "verbosity": "is for models trained with it",
    "reasoning": "is for models trained with it",
    "reasoning_effort": "is for models trained with it",
    "priority": "requests are placed by the scheduler's own order",
    "request_id": "the header X-Request-Id names a request",
}

#: Clients send whole messages of earlier answers back.
MESSAGE_HINTS: Mapping[str, str] = {
    "refusal": "belongs to an earlier answer",
    "annotations": "belongs to an earlier answer",
    "audio": "belongs to an earlier answer",
    "id": "names an earlier answer",
    "reasoning_content": "templates drop it from earlier answers",
    "cache_control": "says how a cache keeps a prompt",
}

PART_HINTS: Mapping[str, str] = {name: MESSAGE_HINTS[name] for name in ("annotations", "cache_control", "id")}

STREAM_HINTS: Mapping[str, str] = {"include_obfuscation": "pads chunks, whose text stays the same"}

#: Neutral values of unknown fields, besides those of ``is_nothing``. Known fields have defaults.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    **dict.fromkeys(("best_of", "n", "num_return_sequences", "num_beams", "num_beam_groups"), (1,)),
    **dict.fromkeys(("length_penalty", "typical_p", "tfs", "tfs_z", "encoder_repetition_penalty"), (1,)),
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size", "min_p", "top_a"), (0,)),
    **dict.fromkeys(("mirostat", "mirostat_mode", "xtc_probability", "dry_multiplier", "dynatemp_range"), (0,)),
    **dict.fromkeys(("presence_penalty", "diversity_penalty", "penalty_alpha", "smoothing_factor"), (0,)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), (0,)),
}

#: Special tokens are added to prompts. In chats the template writes them.
NEUTRAL_WITH_SPECIAL_TOKENS: Mapping[str, tuple[Any, ...]] = {**NEUTRAL, "add_special_tokens": (True,)}

#: Objects with keys of their own, in which false and "" may ask for something.
FREE_FORM = frozenset(
    {"chat_template_kwargs", "mm_processor_kwargs", "vllm_xargs", "extra_args", "custom_params", "logit_bias"}
)

#: Matches `lora_path`, `merged_adapters` and `loraId`, but not `exploration`. Only the beginning of a long name is
#: searched.
_MAX_LOOKED_AT = 256
_ADAPTER_NAME = re.compile(r"(?i:adapter|peft)|(?<![a-z])lora|L(?i:ora)")


@dataclass(frozen=True, slots=True)
class FieldLists:
    """The unknown fields and values that an object may have."""

    hints: Mapping[str, str] = field(default_factory=lambda: HINTS)
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: NEUTRAL)
    #: Advice for fields that have a counterpart here.
    instead: Mapping[str, str] = field(default_factory=dict)
    #: The field that names an adapter, as clients write it.
    adapter_field: str = "model"

    def names_an_adapter(self, name: str) -> bool:
        """Whether an unknown field means an adapter. The base model must never answer in its place."""
        return bool(_ADAPTER_NAME.search(name, 0, _MAX_LOOKED_AT)) or name == "model"
