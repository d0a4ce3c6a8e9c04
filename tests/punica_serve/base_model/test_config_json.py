import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.generation_config import GenerationDefaults
from punica_serve.base_model.model_spec import Llama3RopeScaling
from punica_serve.errors import ModelRejected

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}

SLIDING = ["sliding_attention"] * 2
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 128,
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(generation: dict[str, Any] | None = None, **changes: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return tmp_path

    return write


def test_what_a_file_leaves_out_is_llamas_default(write: Callable[..., Path]) -> None:
    config = read_model_config(write())
    assert (config.num_key_value_heads, config.head_dim, config.rope_theta) == (4, 16, 10000.0)
    assert not config.tie_word_embeddings
    assert config.generation == GenerationDefaults(eos_token_ids=(2,))


def test_linear_shapes_follow_grouped_query_attention(write: Callable[..., Path]) -> None:
    shapes = read_model_config(write(num_key_value_heads=2, head_dim=32)).linear_shapes
    assert shapes["q_proj"] == (128, 64) and shapes["k_proj"] == shapes["v_proj"] == (64, 64)
    assert shapes["o_proj"] == (64, 128)
    assert shapes["gate_proj"] == shapes["up_proj"] == (96, 64) and shapes["down_proj"] == (64, 96)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_in_old_and_new_spelling(write: Callable[..., Path], key: str) -> None:
    assert read_model_config(write(**{key: LLAMA3})).rope_scaling == Llama3RopeScaling(8, 1, 4, 128)
    config = read_model_config(write(**{key: {"type": "linear", "factor": 2, "rope_theta": 7.0}}))
    assert (config.rope_linear_factor, config.rope_theta) == (2.0, 7.0)


def test_generation_config_sets_the_defaults(write: Callable[..., Path]) -> None:
    sampled = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [3, 4]}
    defaults = read_model_config(write(sampled)).generation
    assert defaults == GenerationDefaults(eos_token_ids=(3, 4), temperature=0.6, top_p=0.9)
    greedy = read_model_config(write({"temperature": 0.6, "eos_token_id": 5})).generation
    assert greedy == GenerationDefaults(eos_token_ids=(5,)), "without do_sample it is greedy"


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "swish"},
        {"sliding_window": None, "attention_chunk_size": None, "layer_types": None, "per_layer_config": None},
        {"layer_types": ["full_attention"] * 2, "is_causal": True, "per_layer_config": {}},
        {"head_dim": None, "num_key_value_heads": None, "pretraining_tp": 2, "quantization_config": None},
        {"dtype": "float32", "torch_dtype": "float16"},
        {"logit_scale": 1, "embedding_multiplier": 1.0, "num_experts": 0, "use_qk_norm": False, "clip_qkv": None},
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": None},
    ],
)
def test_what_asks_for_nothing_else_is_served_the_same(write: Callable[..., Path], changes: dict[str, Any]) -> None:
    assert read_model_config(write(**changes)) == read_model_config(write())


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, "float32"),
        ({"dtype": None}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
    ],
)
def test_the_checkpoints_dtype_in_old_and_new_spelling(
    write: Callable[..., Path], changes: dict[str, Any], dtype: str
) -> None:
    assert read_model_config(write(**changes)).dtype == dtype


def test_the_end_of_sequence_comes_from_the_config_where_the_other_file_does_not_say(
    write: Callable[..., Path],
) -> None:
    assert read_model_config(write({"eos_token_id": None}, eos_token_id=[7, 8])).generation.eos_token_ids == (7, 8)
    assert read_model_config(write({}, eos_token_id=None)).generation.eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "bloom"},
            "`model_type` is 'bloom', which is not implemented; served are llama, mistral, qwen2, qw",
        ),
        ({"model_type": "qwen3_moe"}, "`model_type` is 'qwen3_moe', a mixture of experts, which is not implemented"),
        ({"model_type": "qwen3_5"}, "`model_type` is 'qwen3_5', a hybrid with linear attention, which is not"),
        ({"model_type": "olmoe", "num_experts": 64}, "`model_type` is 'olmoe', a mixture of experts, which is not"),
        ({"model_type": "dbrx"}, "`model_type` is 'dbrx', a mixture of experts, which is not"),
        (
            {"model_type": "kimi_linear", "num_experts": 8, "layer_types": ["linear_attention", "full_attention"]},
            "`model_type` is 'kimi_linear', a mixture of experts and a hybrid with linear attention, which is not",
        ),
        (
            {"model_type": "qwen3_5_vl", "text_config": {"n_routed_experts": 8, "linear_num_key_heads": 16}},
            "`model_type` is 'qwen3_5_vl', a mixture of experts and a hybrid with linear attention, which is not",
        ),
        ({"model_type": None}, "`model_type` is None, which"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "`architectures` is .*; of 'llama' only 'LlamaForCaus"),
        ({"architectures": 3}, "`architectures` is 3; of 'llama' only 'LlamaForCausalLM'"),
        (
            {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": True},
            "`sliding_window` is not valid: Expected `int",
        ),
        (
            {
                **{"model_type": "qwen2", "num_key_value_heads": 2, "layer_types": SLIDING},
                **{"use_sliding_window": True, "sliding_window": None},
            },
            "`sliding_window` is None, though `layer_types` has layers that slide",
        ),
        (
            {"model_type": "qwen3", "num_key_value_heads": 2, "rope_parameters": {"full_attention": LLAMA3}},
            "`rope_parameters.full_attention` is an object; numbers for all layers alike are implemented here",
        ),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"full_attention": LLAMA3}},
            "`rope_scaling.full_attention` is an object; numbers for all layers",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
            "`rope_parameters.llama_4_scaling_beta` is 0.1; only a scaling without it",
        ),
        ({"model_type": "gemma", "hidden_activation": "gelu"}, "`hidden_activation` is 'gelu'; only 'gelu_pytorch_tan"),
        ({"model_type": "gemma", "final_logit_softcapping": 30.0}, "`final_logit_softcapping` is 30.0, by which other"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 0}, "`attn_logit_softcapping` is not valid: .* > 0"),
        ({"model_type": "gemma2", "hidden_activation": "relu"}, "`hidden_activation` is 'relu'; only 'gelu_pytorch_t"),
        ({"model_type": "gemma2", "layer_types": ["other", "full_attention"]}, r"`layer_types` is \['other', 'full_at"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1.0}},
            r"`rope_parameters` has \['rope_theta'",
        ),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "`attn_logit_softcapping` is 50.0; only None"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 4.0}},
            r"`rope_scaling\.type` is 'yarn', and there is no `short_factor`",
        ),
        ({"model_type": "gemma3"}, "`text_config` must be an object whose `model_type` is 'gemma3_text'"),
        (
            {"model_type": "mistral3", "text_config": {"model_type": "ministral3"}},
            "`text_config.model_type` is 'ministral3'; of 'mistral3' only 'mistral' is implemented; take another base",
        ),
        (
            {"model_type": "mistral3", "architectures": ["A"], "text_config": {}},
            r"`architectures` is .*; of 'mistral3' only 'Mistral3For",
        ),
        ({"model_type": "qwen2", "num_key_value_heads": 2, "layer_types": SLIDING}, "`layer_types` is "),
        (
            {"model_type": "qwen3", "attention_bias": True},
            "`attention_bias` is True; only False is implemented; take another base model",
        ),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
        (
            {"logits_scaling": 8.0},
            "`logits_scaling` is 8.0, by which other models compute and LlamaForCausalLM does not; take another base",
        ),
        ({"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping` is 50.0, by which other models"),
        ({"num_local_experts": 8}, "`num_local_experts` is 8, by which"),
        ({"use_qk_norm": True}, "`use_qk_norm` is True, by which .* or delete the field if the weights were trained"),
        ({"dual_chunk_attention_config": {"chunk_size": 9}}, "`dual_chunk_attention_config` is "),
        ({"compression_config": {"format": "x"}}, "`compression_config` is set; quantized weights are not"),
        ({"attention_bias": True}, "`attention_bias` is True"),
        ({"quantization_config": {"bits": 4}}, "`quantization_config`"),
        ({"sliding_window": 511}, "`sliding_window` is 511; only None, or max_position_embeddings and more"),
        ({"attention_chunk_size": 8}, "`attention_chunk_size` is 8; only None"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "`layer_types` is .*; only 'full_attention'"),
        ({"layer_types": "full_attention"}, "`layer_types` is not valid: Expected `array | null`, got `str`"),
        ({"is_causal": False}, "`is_causal` is False; only True"),
        ({"per_layer_config": {"0": {"rms_norm_eps": 0.5}}}, "`per_layer_config` is "),
        ({"dtype": "float8_e4m3fn"}, "`dtype` is 'float8_e4m3fn'; float32, float16, bfloat16 are implemented"),
        ({"torch_dtype": {"": "float16"}}, "`torch_dtype` is "),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "`rope_scaling` has type 'longrope'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "`rope_scaling.low_freq_factor` is missing"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1}}, "`rope_scaling.high_freq_factor` must be above"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "`rope_scaling.factor` is not valid: .* > 0"),
        ({"rope_parameters": "foo"}, "`rope_parameters` is not valid: Expected `object | null`, got `str`"),
        ({"rope_parameters": {"rope_theta": None}}, "`rope_parameters.rope_theta` is not valid"),
        ({"rope_theta": None}, "`rope_theta` is not valid"),
        ({"rms_norm_eps": None}, "`rms_norm_eps` is not valid: Expected `float`, got `null`"),
        ({"rms_norm_eps": "x"}, "`rms_norm_eps` is not valid: Expected `float`, got `str`"),
        ({"rms_norm_eps": math.nan}, "`rms_norm_eps` is not valid"),
        ({"rms_norm_eps": math.inf}, "`rms_norm_eps` is not valid"),
        ({"tie_word_embeddings": "false"}, "`tie_word_embeddings` is not valid: Expected `bool`, got `str`"),
        ({"hidden_size": None}, "`hidden_size` is not valid: Expected `int`, got `null`"),
        ({"vocab_size": "many"}, "`vocab_size` is not valid"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` is not valid: Expected `int` >= 1"),
        ({"num_hidden_layers": 10**8}, "`num_hidden_layers` is not valid: Expected `int` <= 10000"),
        ({"num_key_value_heads": 3}, "`num_key_value_heads` must divide"),
        ({"num_attention_heads": 3}, "`num_attention_heads` must divide hidden_size"),
        ({"head_dim": 15}, "`head_dim` must be even"),
        ({"eos_token_id": "</s>"}, "`eos_token_id` is not valid"),
        ({"eos_token_id": [0, "1"]}, r"`eos_token_id\[1\]` is not valid"),
        ({"eos_token_id": -1}, "`eos_token_id` is not valid"),
        ({"eos_token_id": True}, "`eos_token_id` is not valid"),
        ({"eos_token_id": [1, 128]}, "`eos_token_id` is 128, outside the vocabulary of 128"),
    ],
)
def test_what_can_not_be_served_is_refused_by_field(
    write: Callable[..., Path], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelRejected, match=f"/config.json: {message}"):
        read_model_config(write(**changes))


def test_the_text_model_of_one_that_sees_images_is_read(tmp_path: Path) -> None:
    """Fields that its config leaves out are transformers' own, or the wrapper's."""
    raw = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "vision_config": {"model_type": "siglip_vision_model"},
        "text_config": {
            "model_type": "gemma3_text",
            **{"hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 7, "sliding_window": 1024},
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    model = read_model_config(tmp_path)
    assert (model.head_dim, model.num_attention_heads, model.vocab_size) == (256, 8, 262_208)
    assert model.windows == (*[1024] * 5, None, 1024)
    assert model.class_names == ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    assert (model.rope_theta, model.rope_linear_factor) == (1_000_000.0, 8.0)
    assert model.window_rope is not None
    assert (model.window_rope.theta, model.window_rope.linear_factor) == (10_000.0, 1.0)
    assert model.dtype == "bfloat16" and model.generation.eos_token_ids == (1, 106) and model.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 8}, (8, 8)),
        ({"model_type": "mistral", "sliding_window": 512}, ()),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, (None, 8)),
        ({"model_type": "qwen3", "sliding_window": 8, "max_window_layers": 1}, ()),
        ({"model_type": "gemma2", "sliding_window": 8}, (8, None)),
        ({"model_type": "gemma3_text", "sliding_window": 8}, (8, 8)),
        ({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 2}, (8, None)),
        ({"model_type": "gemma2", "sliding_window": 8, "layer_types": ["full_attention"] * 2}, ()),
    ],
)
def test_windows_are_transformers(
    write: Callable[..., Path], changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert read_model_config(write(num_key_value_heads=2, **changes)).windows == windows


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelRejected, match="`vocab_size` is missing") as caught:
        read_model_config(tmp_path)
    assert caught.value.param == "vocab_size"


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"temperature": "hot"}, "`temperature` is not valid: Expected `float`, got `str`"),
        ({"temperature": -1}, "`temperature` is -1.0; it must be at least 0"),
        ({"temperature": math.nan}, "`temperature` is nan"),
        ({"top_p": 3}, "`top_p` is 3.0; it must be above 0 and at most 1"),
        ({"top_k": -1}, "`top_k` is -1"),
        ({"min_p": 2}, "`min_p` is 2.0"),
        ({"repetition_penalty": [1]}, "`repetition_penalty` is not valid"),
        ({"do_sample": "yes"}, "`do_sample` is not valid"),
        ({"eos_token_id": 128}, "`eos_token_id` is 128, outside the vocabulary"),
        ({"eos_token_id": "</s>"}, "`eos_token_id` is not valid"),
    ],
)
def test_wrong_defaults_are_refused_by_field(
    write: Callable[..., Path], generation: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelRejected, match=f"/generation_config.json: {message}"):
        read_model_config(write(generation))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="none does not exist"):
        read_model_config(tmp_path / "none")


def test_a_folder_of_something_else_is_told_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=r"model folder .* has no config\.json; set `engine\.model`"):
        read_model_config(tmp_path)
