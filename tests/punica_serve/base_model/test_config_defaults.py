"""Against transformers' own defaults: fields that a config.json leaves out, for every architecture."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from punica_serve.base_model.architectures import ARCHITECTURES
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig

#: Fields that files may lack, those that belong together at once.
LEFT_OUT = (
    (),
    ("num_key_value_heads",),
    ("head_dim",),
    ("rms_norm_eps",),
    ("tie_word_embeddings",),
    ("sliding_window",),
    ("layer_types",),
    ("rope_parameters",),
    ("hidden_act", "hidden_activation"),
    ("query_pre_attn_scalar",),
    ("attn_logit_softcapping", "final_logit_softcapping"),
    ("eos_token_id",),
)
SAME = ("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
SCORES = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")


def _theirs(config: PreTrainedConfig, ours: ModelConfig) -> dict[str, Any]:
    """What transformers reads, in the words of a ModelConfig."""
    rope = config.rope_parameters
    names = (*SAME, *(SCORES if ours.norms_behind_blocks else ()))
    end = config.eos_token_id
    return {
        **{name: getattr(config, name) for name in names},
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "rope_theta": rope.get("full_attention", rope)["rope_theta"],
        "windows": _windows(config),
        "eos_token_ids": () if end is None else (end,),
    }


def _windows(config: PreTrainedConfig) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    windows = tuple(window if kind == "sliding_attention" else None for kind in types)
    return windows if any(windows) else ()


@pytest.mark.parametrize("left_out", LEFT_OUT, ids=" and ".join)
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_what_a_file_leaves_out_is_transformers_own(tmp_path: Path, model_type: str, left_out: tuple[str, ...]) -> None:
    CONFIG_MAPPING[model_type](architectures=[ARCHITECTURES[model_type].class_name]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    file = {name: value for name, value in json.loads(path.read_text()).items() if name not in left_out}
    path.write_text(json.dumps(file))
    ours = read_model_config(tmp_path)
    theirs = _theirs(AutoConfig.from_pretrained(tmp_path), ours)
    own = {name: getattr(ours, name) for name in theirs if name != "eos_token_ids"}
    assert {**own, "eos_token_ids": ours.generation.eos_token_ids} == theirs
