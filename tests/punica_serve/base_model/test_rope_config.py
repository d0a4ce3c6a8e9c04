"""The meaning of a config.json is what transformers makes of it, or it is refused by the field's name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from transformers import LlamaConfig, Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from config_files import CONFIG_FILES, SHAPE
from examples import examples
from punica_serve.base_model.config_json import read_model_config
from punica_serve.errors import ModelRejected
from punica_serve.models.rotary import inverse_frequencies, magnitude
from transformers_oracle import RefusedByTransformers, rotary_embedding

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
#: Last parts of the names of fields that may be refused although transformers takes them, warning of them or not.
REFUSED_BY_DESIGN = {
    "rope_scaling",  # types that are not implemented
    "rope_parameters",
    "partial_rotary_factor",
    "factor",
    "rope_theta",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "hidden_act",
    "sliding_window",
    "layer_types",
    "is_causal",
}


@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=CONFIG_FILES)
@example(file={**SHAPE, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": LLAMA3})
@example(file={**SHAPE, "rope_parameters": LLAMA3, "original_max_position_embeddings": 16})
@example(
    file={
        **SHAPE,
        "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64},
        "original_max_position_embeddings": 16,
    }
)
@example(file={**SHAPE, "rope_scaling": LLAMA3})
@example(file={**SHAPE, "rope_scaling": {"type": "yarn", "factor": 4.0}})
@example(file={**SHAPE, "rope_parameters": {**YARN, "truncate": False, "beta_fast": 16, "beta_slow": 2.0}})
@example(file={**SHAPE, "rope_parameters": {**YARN, "attention_factor": 1.5, "rope_theta": 1e6}})
@example(file={**SHAPE, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.5}})
@example(file={**SHAPE, "rope_parameters": {**YARN, "mscale": 0.7, "attention_factor": 1.5}})
@example(file={**SHAPE, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "attn_factor": 1}})
@example(file={**SHAPE, "rope_parameters": {**YARN, "beta_fast": 1.0}})
@example(file={**SHAPE, "rope_theta": None, "rope_parameters": {"rope_theta": 500.0}})
@example(file={**SHAPE, "rope_scaling": {}, "rope_parameters": {"type": "linear", "factor": 2.0}})
@example(file={**SHAPE, "rope_scaling": {"rope_type": "default"}, "rope_theta": 3.5, "rope_parameters": LLAMA3})
@example(file={**SHAPE, "rope_scaling": {"type": "linear", "factor": 0.5, "rope_type": "default"}})
def test_a_config_means_what_transformers_makes_of_it(file: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(file))
    try:
        frequencies, attention_scaling = rotary_embedding(path)
    except RefusedByTransformers:
        return
    theirs = LlamaConfig.from_dict(json.loads(path.read_bytes()))
    try:
        ours = read_model_config(tmp_path)
    except ModelRejected as error:
        assert error.param and error.param.rpartition(".")[2] in REFUSED_BY_DESIGN, error
        return
    torch.testing.assert_close(inverse_frequencies(ours.spec.layers[0].rotary)[0], frequencies, rtol=1e-6, atol=0)
    assert attention_scaling == pytest.approx(magnitude(ours.spec.layers[0].rotary))
    assert (ours.head_dim, ours.num_key_value_heads) == (theirs.head_dim, theirs.num_key_value_heads)
    assert (ours.rms_norm_eps, ours.tie_word_embeddings) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    assert theirs.dtype in (None, getattr(torch, ours.dtype))


PHI3 = {**SHAPE, "model_type": "phi3", "architectures": None, "pad_token_id": None, "eos_token_id": 0}


@pytest.mark.parametrize("field", ["type", "rope_type"])
def test_a_phi3_with_the_yarn_of_other_models_is_told_what_is_served(tmp_path: Path, field: str) -> None:
    file = {**PHI3, "rope_scaling": {field: "yarn", "factor": 4.0}}
    (tmp_path / "config.json").write_text(json.dumps(file))
    with pytest.raises(ModelRejected, match=r"is 'yarn', .*'default' and 'longrope' are implemented") as refused:
        read_model_config(tmp_path)
    assert f"`rope_scaling.{field}`" in refused.value.message


@pytest.mark.parametrize("num_tokens", [40, 41])
@pytest.mark.parametrize(
    ("changes", "rotated"),
    [
        ({"rope_scaling": {"type": "longrope"}}, 1.0),
        ({"rope_scaling": {"type": "su"}, "partial_rotary_factor": 0.75}, 0.75),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 6.0, "partial_rotary_factor": 0.5}}, 0.5),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 500.0, "attention_factor": 1.3}}, 1.0),
    ],
)
def test_longrope_is_transformers(tmp_path: Path, changes: dict[str, Any], rotated: float, num_tokens: int) -> None:
    num_pairs = int(SHAPE["hidden_size"] // SHAPE["num_attention_heads"] * rotated) // 2
    short, long = [1.0 + i for i in range(num_pairs)], [2.0 + i * i for i in range(num_pairs)]
    factors = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 40}
    file = {**PHI3, "original_max_position_embeddings": 40, "max_position_embeddings": 256, **changes}
    for holder in ("rope_scaling", "rope_parameters"):
        if holder in file:
            file[holder] = {**file[holder], **factors}
    (tmp_path / "config.json").write_text(json.dumps(file))
    theirs = Phi3RotaryEmbedding(Phi3Config.from_dict(json.loads(json.dumps(file))))
    cos, _ = theirs(torch.zeros(1), torch.arange(num_tokens)[None])
    spec = read_model_config(tmp_path).spec
    frequencies = inverse_frequencies(spec.layers[0].rotary)[spec.rotary_start(num_tokens) // 256]
    angles = torch.outer(torch.arange(num_tokens).float(), frequencies)
    torch.testing.assert_close(angles.cos() * magnitude(spec.layers[0].rotary), cos[0, :, :num_pairs])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "`rope_scaling` has type 'linear'; 'default' and 'longrope'",
        ),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, r"`rope_scaling\.long_factor` is missing"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            r"`rope_scaling\.short_factor` has 1 numbers; \d+ elements of a head are rotated in pairs",
        ),
        ({"partial_rotary_factor": 0.1}, "`partial_rotary_factor` is 0.1, which rotates"),
        ({"partial_rotary_factor": 1.5}, "`partial_rotary_factor` is not valid"),
    ],
)
def test_longrope_that_is_half_said_is_refused_by_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PHI3, **changes}))
    with pytest.raises(ModelRejected, match=message):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"original_max_position_embeddings": None}, "`original_max_position_embeddings` is not valid"),
        ({"rope_scaling": {**LLAMA3, "factor": None}}, r"`rope_scaling\.factor` is not valid"),
        (
            {"rope_scaling": {**LLAMA3, "partial_rotary_factor": 0.5}},
            r"`rope_scaling\.partial_rotary_factor` is 0\.5; only 1 is implemented",
        ),
        ({"rope_scaling": {**YARN, "mscale": 0.7}}, r"`rope_scaling\.mscale_all_dim` is missing"),
        ({"rope_scaling": {**YARN, "attn_factor": 0.88}}, r"`rope_scaling\.attn_factor` is 0\.88, which .* ignores"),
        ({"rope_scaling": {**YARN, "rope_theta": 1}}, r"`rope_theta` is 1\.0; 'yarn' needs one above 1"),
        ({"rope_scaling": {**YARN, "beta_fast": 0}}, r"`rope_scaling\.beta_fast` is not valid"),
        ({"partial_rotary_factor": 0.5}, r"`partial_rotary_factor` is 0\.5; only 1 is implemented"),
    ],
)
def test_what_can_not_be_served_is_refused_by_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, "rope_parameters": LLAMA3, **changes}))
    with pytest.raises(ModelRejected, match=message):
        read_model_config(tmp_path)
