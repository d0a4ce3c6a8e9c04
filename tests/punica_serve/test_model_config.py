import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from punica_serve.errors import ModelRejected
from punica_serve.model_config import GenerationDefaults, Llama3RopeScaling, read_model_config

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
    llama3 = {
        "rope_type": "llama3",
        "factor": 8,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 128,
    }
    assert read_model_config(write(**{key: llama3})).rope_scaling == Llama3RopeScaling(8, 1, 4, 128)
    config = read_model_config(write(**{key: {"type": "linear", "factor": 2, "rope_theta": 7.0}}))
    assert (config.rope_linear_factor, config.rope_theta) == (2.0, 7.0)


def test_generation_config_sets_the_defaults(write: Callable[..., Path]) -> None:
    sampled = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [3, 4]}
    defaults = read_model_config(write(sampled)).generation
    assert defaults == GenerationDefaults(eos_token_ids=(3, 4), temperature=0.6, top_p=0.9)
    greedy = read_model_config(write({"temperature": 0.6, "eos_token_id": 5})).generation
    assert greedy == GenerationDefaults(eos_token_ids=(5,)), "without do_sample it is greedy"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mistral"}, "`model_type` is 'mistral'"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
        ({"attention_bias": True}, "`attention_bias` is True"),
        ({"quantization_config": {"bits": 4}}, "`quantization_config`"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "`rope_scaling` has type 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "`rope_scaling` of type 'llama3' lacks"),
        ({"hidden_size": None}, "`hidden_size` must be a positive integer"),
        ({"vocab_size": "many"}, "`vocab_size` must be a positive integer"),
        ({"num_key_value_heads": 3}, "`num_key_value_heads` must divide"),
    ],
)
def test_what_is_not_implemented_is_refused_by_field(
    write: Callable[..., Path], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelRejected, match=message):
        read_model_config(write(**changes))


def test_broken_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="does not exist"):
        read_model_config(tmp_path / "none")
    with pytest.raises(ModelRejected, match="can't be read"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelRejected, match="is not JSON"):
        read_model_config(tmp_path)
