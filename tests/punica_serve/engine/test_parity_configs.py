"""Parity with PEFT for what configurations say without effect: PEFT serves these adapters, so they are served alike."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import EvaConfig, LoraConfig, PeftModel, get_peft_model, initialize_lora_eva_weights
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME, read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef, Request, SamplingParams

#: PEFT warns of most of them.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")

NUM_LAYERS = 3
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPT = (5, 17, 2, 40, 33)
NUM_TOKENS = 8

#: Arguments of LoraConfig, fields added to the saved file, and the expected log.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "names that the base lacks": (
        {"target_modules": ["q_proj", "query_key_value", "layers.9.mlp.up_proj"]},
        {},
        "`query_key_value`",
    ),
    "layers that the base lacks": (
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1, 7]},
        {},
        "`layers_to_transform` names `7`; the base model has layers 0 to 2",
    ),
    "rslora of null": ({"target_modules": ["v_proj"], "use_rslora": None}, {"use_rslora": None}, ""),
    "ignored case": ({"target_modules": r"(?i).*\.(Q|UP)_PROJ"}, {}, ""),
    "ignored case in a pattern": ({"target_modules": ["q_proj", "o_proj"], "rank_pattern": {"(?i:Q)_proj": 2}}, {}, ""),
    "bias of the modules": ({"target_modules": ["q_proj"], "bias": "lora_only"}, {"bias": "lora_only"}, ""),
    "bias of all": ({"target_modules": ["q_proj"], "bias": "all"}, {"bias": "all"}, ""),
    "fan in, fan out": ({"target_modules": ["k_proj"]}, {"fan_in_fan_out": True}, ""),
    "case of all": ({"target_modules": "ALL-linear", "alpha_pattern": {r".*\.1\..*": 24}}, {}, ""),
}

SaveAdapter = Callable[[LoraConfig], PeftModel]


@pytest.fixture(scope="module")
def base(make_llama: Callable[..., Path]) -> Path:
    return make_llama(num_hidden_layers=NUM_LAYERS)


def save(base: Path, folder: Path, config: LoraConfig, ranks: dict[str, int] | None = None) -> None:
    """An adapter of random weights; with ``ranks``, which EVA gave its modules."""
    torch.manual_seed(1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    if ranks is not None:
        shapes = {name: module.in_features for name, module in model.named_modules() if name in ranks}
        initialize_lora_eva_weights(
            model, eva_state_dict={name: torch.randn(rank, shapes[name]) for name, rank in ranks.items()}
        )
    for name, tensor in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(tensor, std=0.2)
    model.save_pretrained(folder)


def set_fields(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    path = folder / CONFIG_NAME
    config: dict[str, Any] = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps(config))
    return config


def check_parity(base: Path, folder: Path, ref: AdapterRef, engine: Engine) -> None:
    """The engine's logits after each token are those of PEFT, and other than the base model's."""
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=97)
    engine.add(Request("r", 0, PROMPT, params, ref))
    tokens, rows = [], []
    while engine.num_requests:
        for token in engine.step().tokens:
            assert token.logprobs is not None
            tokens.append(token.token_id)
            row = torch.empty(97)
            row[list(token.logprobs.top_ids)] = torch.tensor(token.logprobs.top_logprobs)
            rows.append(row)
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder).eval()
    ids = torch.tensor([[*PROMPT, *tokens[:-1]]])
    with torch.inference_mode():
        expected = peft(ids).logits[0, len(PROMPT) - 1 :].log_softmax(-1)
        with peft.disable_adapter():
            without = peft(ids).logits[0, len(PROMPT) - 1 :].log_softmax(-1)
    assert tokens == expected.argmax(-1).tolist()
    torch.testing.assert_close(torch.stack(rows), expected, atol=2e-4, rtol=1e-4)
    assert (expected - without).abs().max() > 0.05, "else the parity would prove little"


@pytest.mark.parametrize("case", CASES)
def test_what_has_no_effect_with_peft_has_none_here(
    base: Path,
    tmp_path: Path,
    make_engine: Callable[..., Engine],
    load: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    case: str,
) -> None:
    settings, in_file, logged = CASES[case]
    save(base, tmp_path, LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **settings))
    assert set_fields(tmp_path, in_file).items() >= in_file.items()
    with caplog.at_level(logging.WARNING):
        ref = read_adapter(tmp_path, read_model_config(base), called="acme/latin")
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == bool(logged), warnings
    assert all(logged in warning and warning.startswith("adapter acme/latin: ") for warning in warnings)
    engine = make_engine(base, "cpu")
    load(engine, [ref])
    check_parity(base, tmp_path, ref, engine)


def test_modules_that_lost_all_ranks_to_eva_have_no_update(
    base: Path, tmp_path: Path, make_engine: Callable[..., Engine], load: Callable[..., None]
) -> None:
    """PEFT shortens the list of the modules that are left, so that it means those that are gone too."""
    model = read_model_config(base)
    paths = {
        f"base_model.model.model.layers.{layer}.{'self_attn' if module in ALL[:4] else 'mlp'}.{module}": number % 5 + 1
        for number, (layer, module) in enumerate((layer, module) for layer in range(NUM_LAYERS) for module in ALL)
    }
    lost = "base_model.model.model.layers.1.self_attn.o_proj"
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        task_type="CAUSAL_LM",
        target_modules=list(ALL),
        init_lora_weights="eva",
        eva_config=EvaConfig(rho=1.5),
    )
    save(base, tmp_path, config, {**paths, lost: 0})
    assert not [name for name in load_file(tmp_path / WEIGHTS_NAME) if name.startswith(lost)]
    assert "o_proj" in set_fields(tmp_path, {})["target_modules"], "so its tensors are missing"
    ref = read_adapter(tmp_path, model)
    assert ref.scalings == (2.0,), "EVA keeps alpha over rank"
    engine = make_engine(base, "cpu")
    load(engine, [ref])
    check_parity(base, tmp_path, ref, engine)
