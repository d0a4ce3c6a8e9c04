"""The reasons to refuse an adapter before its weights are read, and those that are left to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from punica_serve.adapters.early_checks import check_config
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.lora_layout import USUAL_LIMITS, LoraLimits
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected

SetConfig = Callable[..., None]


def check(folder: Path, model: ModelConfig, *, strict_base: bool = False) -> None:
    check_config(folder, model, USUAL_LIMITS, strict_base=strict_base)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "only 'LORA' is served"),
        ({"unknown": 1}, "`unknown` is 1, which can't be applied"),
        ({"r": 129}, "the adapter has rank 129 in all its modules, .* raise `engine.max_lora_rank` to 129"),
        ({"r": 200, "rank_pattern": {"q_proj": 160}}, "rank 160 in all its modules, or a higher one, and"),
        ({"target_modules": ["c_attn"]}, "names `c_attn`, which the base model does not have"),
        ({"target_modules": ["model.layers.9.self_attn.q_proj"]}, "which the base model does not have"),
        ({"target_modules": ["lm_head"]}, "the adapter updates lm_head, and `engine.lora_vocabulary` is false"),
        ({"alora_invocation_tokens": [10**6]}, "outside the base model's vocabulary"),
    ],
)
def test_a_configuration_is_refused_without_its_weights(
    folder: Path, model: ModelConfig, set_config: SetConfig, fields: dict[str, Any], message: str
) -> None:
    set_config(**fields)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(AdapterRejected, match=f"adapter_config.json: .*{message}") as caught:
        check(folder, model)
    assert caught.value.param in fields


def test_strict_base_refuses_another_base_name(folder: Path, model: ModelConfig, set_config: SetConfig) -> None:
    set_config(base_model_name_or_path="org/other")
    check(folder, model)
    with pytest.raises(AdapterRejected, match="is 'org/other', but the base model is 'tiny'"):
        check(folder, model, strict_base=True)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"r": 200, "rank_pattern": {".*": 4}},
        {"target_modules": r".*\.c_attn"},
        {"target_modules": ["model.language_model.layers.0.self_attn.q_proj"]},
        {"target_modules": ["q_proj", "lm_head"], "init_lora_weights": "eva"},
    ],
)
def test_what_the_weights_may_settle_passes(
    folder: Path, model: ModelConfig, set_config: SetConfig, fields: dict[str, Any]
) -> None:
    """Among these are names in a model that also sees images, which only the tensors' names tell."""
    set_config(**fields)
    check(folder, model)


def test_what_was_refused_is_refused_with_its_weights_too(
    folder: Path, model: ModelConfig, set_config: SetConfig
) -> None:
    limits = LoraLimits(max_rank=2)
    with pytest.raises(AdapterRejected, match="rank 4 in all its modules"):
        check_config(folder, model, limits, strict_base=False)
    assert limits.why_not(read_adapter(folder, model).ranks)


def test_a_missing_configuration_is_named(tmp_path: Path, model: ModelConfig) -> None:
    with pytest.raises(AdapterRejected, match=r"adapter_config\.json: can't be read"):
        check(tmp_path, model)
