"""Strategies for config.json files of tiny Llamas: old and new spellings, fields left out, null, or said twice."""

from typing import Any

from hypothesis import strategies as st

#: Shapes that all drawn files have, so that one checkpoint fits them all.
SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "pad_token_id": None,
    "eos_token_id": 0,
}

_THETAS = st.sampled_from([10000, 10000.0, 500.0, 1_000_000, 3.5])
_CONTEXTS = st.sampled_from([16, 32, 64, 256, 8192])
_FACTORS = st.sampled_from([1.0, 2, 8.0, 0.5])
_KINDS = st.sampled_from(["default", "linear", "llama3", "yarn"])
#: Values that nobody should write, each drawn seldom.
_ODD = st.sampled_from([None, "8", 0, -1.0, True])


def _seldom(odd: st.SearchStrategy[Any], usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    # Not an end of the range: those are drawn more often.
    return st.integers(0, 63).flatmap(lambda number: odd if number == 17 else usual)


def _said(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _seldom(_ODD, usual)


_ROPE = st.fixed_dictionaries(
    {},
    optional={
        "type": _seldom(st.sampled_from(["longrope", None]), _KINDS),
        "rope_type": _seldom(st.sampled_from(["dynamic", None]), _KINDS),
        "rope_theta": _said(_THETAS),
        "factor": _said(_FACTORS),
        "original_max_position_embeddings": _said(_CONTEXTS),
        "partial_rotary_factor": _seldom(st.just(0.5), st.sampled_from([1, 1.0])),
        "unknown": st.just(3),
    },
)
#: With all that a scaling needs: without, most would be refused.
_SCALED = st.builds(
    lambda rope, spelling, kind, low, high: {
        "factor": 4.0,
        "low_freq_factor": low,
        "high_freq_factor": high,
        spelling: kind,
        **{name: value for name, value in rope.items() if name not in ("type", "rope_type")},
    },
    _ROPE,
    st.sampled_from(["type", "rope_type"]),
    st.sampled_from(["linear", "llama3", "yarn"]),
    _said(st.sampled_from([1, 1.0, 2.0])),
    _said(st.sampled_from([4, 4.0, 1.5])),
)
_ROPES = st.one_of(st.none(), st.just({}), _ROPE, _SCALED, _SCALED, _SCALED)

ROPE_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "rope_theta": _said(_THETAS),
        "rope_parameters": _ROPES,
        "rope_scaling": _ROPES,
        "original_max_position_embeddings": _said(_CONTEXTS),
        "partial_rotary_factor": _seldom(st.just(0.5), st.sampled_from([None, 1.0])),
    },
)

_OTHER_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "head_dim": st.sampled_from([None, 8]),
    "num_key_value_heads": st.sampled_from([None, 4]),
    "rms_norm_eps": st.sampled_from([1e-6, 1e-5, 0.25]),
    "tie_word_embeddings": st.sampled_from([False, True]),
    "dtype": st.sampled_from([None, "float32", "bfloat16", "float16"]),
    "torch_dtype": st.sampled_from([None, "float32", "bfloat16", "float16"]),
    "eos_token_id": st.sampled_from([None, 0, 5, [5, 6], []]),
    "hidden_act": _seldom(st.just("gelu"), st.sampled_from(["silu", "swish"])),
    "attention_bias": _seldom(st.none(), st.just(False)),
    "pretraining_tp": st.sampled_from([None, 1, 2]),
    "sliding_window": _seldom(st.just(4), st.none()),
    "layer_types": _seldom(st.just(["sliding_attention"] * 2), st.sampled_from([None, ["full_attention"] * 2])),
    "is_causal": _seldom(st.just(False), st.sampled_from([None, True])),
    "quantization_config": st.none(),
    "use_cache": st.booleans(),
    "attention_dropout": st.sampled_from([0.0, 0.5]),
}

#: Files in which anything may be said or left out.
CONFIG_FILES = st.builds(
    lambda rope, others, left_out: {
        name: value for name, value in {**SHAPE, **others, **rope}.items() if name not in left_out
    },
    ROPE_FIELDS,
    st.fixed_dictionaries({}, optional=_OTHER_FIELDS),
    st.sets(st.sampled_from(["num_key_value_heads", "head_dim", "eos_token_id"])),
)
