"""PEFT is the oracle: what it loads from a folder, we read from it, to the last bit of A, B and scaling."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import LlamaConfig, LlamaForCausalLM

from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.base_model.model_config import ModelConfig

#: PEFT calls what transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "one": {"target_modules": ["down_proj"], "r": 1, "lora_alpha": 3},
    "all seven": {"target_modules": "all-linear"},
    "all but some": {"target_modules": "all-linear", "exclude_modules": ["k_proj", "mlp.up_proj"]},
    "default targets": {},
    "rslora": {"target_modules": ["o_proj", "up_proj"], "use_rslora": True, "r": 6, "lora_alpha": 5},
    "rank pattern": {"target_modules": "all-linear", "rank_pattern": {"q_proj": 7, r"layers\.1\.mlp\..*": 2}},
    "alpha pattern": {"target_modules": ["q_proj", "k_proj"], "alpha_pattern": {"layers.0.self_attn.q_proj": 32}},
    "every pattern": {
        "target_modules": ["q_proj", "gate_proj", "down_proj"],
        "use_rslora": True,
        # PEFT saves keys in alphabetical order, and the first that matches counts.
        "rank_pattern": {"^model.layers.0.self_attn.q_proj": 9, "q_proj|gate_proj": 5},
        "alpha_pattern": {"down_proj": 1, "1.self_attn.q_proj": 11},
    },
    "regex": {"target_modules": r".*\.layers\.1\.(self_attn\.(k|v)|mlp\.gate)_proj"},
    "some layers": {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    "one layer": {"target_modules": ["v_proj"], "layers_to_transform": 0},
    "full paths": {"target_modules": ["model.layers.0.self_attn.o_proj", "1.mlp.down_proj"]},
    "excluded": {"target_modules": ["q_proj", "k_proj"], "exclude_modules": r".*layers\.0\..*k_proj"},
    "other inits": {"target_modules": ["q_proj"], "init_lora_weights": "orthogonal"},
    "ineffective": {
        "target_modules": ["q_proj"],
        "lora_dropout": 0.5,
        "revision": "main",
        "ensure_weight_tying": False,
    },
    "causal": {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"},
}


def llama(model: ModelConfig) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
    )
    return LlamaForCausalLM(config)


def save_adapter(folder: Path, model: ModelConfig, dtype: torch.dtype, fields: dict[str, Any]) -> Path:
    peft_model = get_peft_model(llama(model), LoraConfig(**{"r": 4, "init_lora_weights": False, **fields}))
    for name, parameter in peft_model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter).to(dtype)
    peft_model.save_pretrained(folder)
    return folder


def peft_layers(folder: Path, model: ModelConfig) -> dict[tuple[int, str], LoraLayer]:
    loaded = PeftModel.from_pretrained(llama(model), folder)
    layers = {}
    for name, module in loaded.named_modules():
        if isinstance(module, LoraLayer):
            parts = name.removeprefix("base_model.model.model.layers.").split(".")
            layers[int(parts[0]), parts[-1]] = module
    return layers


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_updates_are_pefts(tmp_path: Path, model: ModelConfig, variant: str, dtype: torch.dtype) -> None:
    folder = save_adapter(tmp_path, model, dtype, VARIANTS[variant])
    adapter, layers = load_adapter(read_adapter(folder, model), model), peft_layers(folder, model)
    assert set(adapter.pairs) == set(layers)
    for key, pair in adapter.pairs.items():
        layer = layers[key]
        np.testing.assert_array_equal(pair.a.float32(), layer.lora_A["default"].weight.detach().numpy())
        np.testing.assert_array_equal(pair.b.float32(), layer.lora_B["default"].weight.detach().numpy())
        assert pair.scaling == layer.scaling["default"]
        delta = pair.scaling * pair.b.float32() @ pair.a.float32()
        np.testing.assert_allclose(delta, layer.get_delta_weight("default").detach().numpy(), rtol=1e-4, atol=1e-4)
