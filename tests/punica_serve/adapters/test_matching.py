"""Against PEFT's own matching functions, over the modules of Hugging Face's Llama."""

import re
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from transformers import LlamaConfig, LlamaForCausalLM

from examples import examples
from punica_serve.adapters.matching import LoraTarget, match_targets
from punica_serve.adapters.peft_config import PeftConfig
from punica_serve.adapters.targets import base_modules, linear_modules, updatable_modules
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected
from tiny_config import tiny_config

SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def targets_of(config: PeftConfig, model: ModelConfig) -> tuple[LoraTarget, ...]:
    return match_targets(config, base_modules(model)).targets


module_ends = st.sampled_from([*SEVEN, "mlp.up_proj", "1.self_attn.q_proj", "layers.0.mlp.down_proj", "nowhere"])
regexes = st.sampled_from(
    [
        r".*\.(q|k|v)_proj",
        r".*layers\.1\..*_proj",
        r"model\.layers\.[01]\.mlp\.(gate|up)_proj",
        r".*self_attn\..*",
        r".*_proj",
        r"(?i)MODEL.*(?P<which>Q|up)_proj",
        r".*\.(?!self_attn|[0-9])[a-z]+\.(?:up|down)_proj",
        r"(?s:.)+?\.(\d+)\..*(?<=k_proj|v_proj)",
        r"\w+\.\w+\.(\d)\.(?:mlp|self_attn)\.(?#all)\w+_proj",
    ]
)
path_patterns = st.sampled_from(
    [
        "q_proj",
        "mlp.up_proj",
        r"layers\.0\..*",
        "layers.1.self_attn.v_proj",
        "up_proj|q_proj",
        "^model.*k_proj",
        "proj",
        ".*",
        "(?i:Q_PROJ)",
        r"(\w+)\.(?:gate|up)_\w+",
        r"(?!.*mlp).*",
    ]
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "r": draw(st.integers(1, 8)),
        "lora_alpha": draw(st.integers(-4, 32)),
        "use_rslora": draw(st.booleans() | st.none()),
        "rank_pattern": draw(st.dictionaries(path_patterns, st.integers(1, 64), max_size=3)),
        "alpha_pattern": draw(st.dictionaries(path_patterns, st.integers(1, 64), max_size=3)),
        "target_modules": draw(st.lists(module_ends, min_size=1, unique=True) | regexes),
        "exclude_modules": draw(st.none() | st.lists(module_ends, max_size=3) | regexes),
    }
    if isinstance(fields["target_modules"], list):
        fields["layers_to_transform"] = draw(st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3)))
        if fields["layers_to_transform"] is not None:
            fields["layers_pattern"] = draw(st.sampled_from([None, "", "layers", ["h", "layers"], [], "h", r"la\w+"]))
    return fields


def peft_targets(fields: dict[str, Any], model: ModelConfig) -> dict[str, tuple[int, float]]:
    """path -> (rank, alpha), by the functions that PEFT itself calls."""
    config = LoraConfig(**fields)
    targets = {}
    for _, _, path in linear_modules(model):
        if check_target_module_exists(config, path):
            rank = config.rank_pattern.get(get_pattern_key(config.rank_pattern, path), config.r)
            alpha = config.alpha_pattern.get(get_pattern_key(config.alpha_pattern, path), config.lora_alpha)
            targets[path] = (rank, alpha)
    return targets


@settings(max_examples=examples(300), deadline=None)
@given(fields=configs())
def test_targets_ranks_and_alphas_are_pefts(fields: dict[str, Any], model: ModelConfig) -> None:
    expected = peft_targets(fields, model)
    config = msgspec.convert(fields, PeftConfig)
    if expected:
        assert {t.path: (t.rank, t.alpha) for t in targets_of(config, model)} == expected
    else:
        with pytest.raises(AdapterRejected, match="target_modules"):
            targets_of(config, model)


def test_module_paths_are_those_of_llama(model: ModelConfig) -> None:
    config = LlamaConfig(vocab_size=8, hidden_size=8, num_attention_heads=2, num_hidden_layers=model.num_hidden_layers)
    with torch.device("meta"):
        llama = LlamaForCausalLM(config)
    kinds = (torch.nn.Linear, torch.nn.Embedding)
    known = {name for name, module in llama.named_modules() if isinstance(module, kinds)}
    assert {path for _, _, path in updatable_modules(model)} == known
    for name, _ in llama.named_modules():
        if name and name not in known:
            with pytest.raises(AdapterRejected, match=f"matches `{name}`"):
                targets_of(PeftConfig(target_modules=f".*q_proj|{name}"), model)


def test_an_excluded_module_may_be_matched(model: ModelConfig) -> None:
    config = PeftConfig(target_modules=".*q_proj|lm_head", exclude_modules=("lm_head",))
    assert {target.module for target in targets_of(config, model)} == {"q_proj"}


@pytest.mark.parametrize("spelling", ["all-linear", "ALL-linear"])
def test_all_linear_leaves_out_the_output_layer(model: ModelConfig, spelling: str) -> None:
    targets = targets_of(PeftConfig(target_modules=spelling, exclude_modules=("down_proj",)), model)
    assert [(target.layer, target.module) for target in targets] == [(i, m) for i in range(2) for m in SEVEN[:-1]]


def test_no_target_modules_means_pefts_choice_for_llama(model: ModelConfig) -> None:
    assert {target.module for target in targets_of(PeftConfig(), model)} == {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    ("name", "path"),
    [("norm", "model.norm"), ("0.mlp", "model.layers.0.mlp")],
)
def test_names_of_other_modules_are_refused(model: ModelConfig, name: str, path: str) -> None:
    with pytest.raises(AdapterRejected, match=f"matches `{path}`, which is no linear module") as caught:
        targets_of(PeftConfig(target_modules=("q_proj", name)), model)
    assert caught.value.param == "target_modules"


@pytest.mark.parametrize("norm", ["pre_feedforward_layernorm", "self_attn.q_norm"])
def test_norms_that_only_the_base_has_are_refused_as_well(norm: str) -> None:
    gemma = tiny_config(qk_norm=True, is_gemma=True, norms_behind_blocks=True)
    with pytest.raises(AdapterRejected, match=rf"matches `model\.layers\.0\.{norm}`, which is no linear module"):
        targets_of(PeftConfig(target_modules=("q_proj", norm)), gemma)


@pytest.mark.parametrize("name", ["foo", "proj", "", "model.layers.2.self_attn.q_proj"])
def test_names_that_the_base_lacks_are_warned_of(model: ModelConfig, name: str) -> None:
    matches = match_targets(PeftConfig(target_modules=("q_proj", name)), base_modules(model))
    assert {target.module for target in matches.targets} == {"q_proj"}
    assert matches.warnings == (f"`target_modules` names `{name}`, which the base model does not have",)


def test_warnings_are_short(model: ModelConfig) -> None:
    names = tuple(f"{number}{'x' * 1000}" for number in range(2000))
    (warning,) = match_targets(PeftConfig(target_modules=("q_proj", *names)), base_modules(model)).warnings
    assert "and 1995 more" in warning and len(warning) < 1300


@pytest.mark.parametrize("target_modules", [(), "q_proj", "", "dummy-target-modules"])
def test_matching_nothing_is_refused(model: ModelConfig, target_modules: str | tuple[str, ...]) -> None:
    with pytest.raises(AdapterRejected, match="`target_modules`"):
        targets_of(PeftConfig(target_modules=target_modules), model)


def test_layers_that_the_base_lacks_are_warned_of(model: ModelConfig) -> None:
    config = PeftConfig(target_modules=("q_proj",), layers_to_transform=(1, 2, 7))
    matches = match_targets(config, base_modules(model))
    assert [(target.layer, target.module) for target in matches.targets] == [(1, "q_proj")]
    assert matches.warnings == ("`layers_to_transform` names `2`, `7`; the base model has layers 0 to 1",)


def test_only_layers_that_the_base_lacks_are_refused(model: ModelConfig) -> None:
    with pytest.raises(AdapterRejected, match="names `2`; the base model has layers 0 to 1"):
        targets_of(PeftConfig(target_modules=("q_proj",), layers_to_transform=2), model)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"target_modules": "(q_proj"}, "target_modules"),
        ({"target_modules": "a{99999999999999999999}"}, "target_modules"),
        ({"target_modules": "(" * 5000 + ")" * 5000}, "target_modules"),
        ({"exclude_modules": "*"}, "exclude_modules"),
        ({"rank_pattern": {"(": 4}}, "rank_pattern"),
        ({"alpha_pattern": {"(": 4.0}}, "alpha_pattern"),
        ({"target_modules": ("q_proj",), "layers_to_transform": 0, "layers_pattern": "("}, "layers_pattern"),
    ],
)
def test_broken_expressions_are_refused_by_name(model: ModelConfig, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(AdapterRejected, match=f"`{param}` has an invalid regular expression") as caught:
        targets_of(PeftConfig(**fields), model)
    assert caught.value.param == param
    assert len(caught.value.message) < 500


def test_case_is_ignored_where_an_expression_says_so(model: ModelConfig) -> None:
    fields: dict[str, Any] = {"target_modules": r"(?i).*\.Q_PROJ", "rank_pattern": {"(?i:Q_PROJ)": 3}}
    expected = peft_targets({"r": 8, "lora_alpha": 8, **fields}, model)
    assert {t.path: (t.rank, t.alpha) for t in targets_of(PeftConfig(**fields), model)} == expected
    assert {rank for rank, _ in expected.values()} == {3}


def test_flags_within_a_pattern_are_refused_with_what_to_write(model: ModelConfig) -> None:
    fields = {"target_modules": ["q_proj"], "rank_pattern": {"(?i)Q_PROJ": 3}}
    with pytest.raises(AdapterRejected, match=r"write \(\?i:\.\.\.\) around") as caught:
        targets_of(msgspec.convert(fields, PeftConfig), model)
    assert caught.value.param == "rank_pattern"
    with pytest.raises(re.error, match="global flags"):
        peft_targets(fields, model)


def test_full_paths_with_layers_are_refused(model: ModelConfig) -> None:
    config = PeftConfig(target_modules=("model.layers.0.self_attn.q_proj",), layers_to_transform=1)
    with pytest.raises(AdapterRejected, match="`layers_to_transform`"):
        targets_of(config, model)


def test_a_layers_pattern_without_an_index_selects_nothing(model: ModelConfig) -> None:
    config = PeftConfig(target_modules=("q_proj",), layers_to_transform=0, layers_pattern="model|x")
    with pytest.raises(AdapterRejected, match="`target_modules`"):
        targets_of(config, model)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"r": 257}, "r"),
        ({"r": 257, "rank_pattern": {"k_proj": 8}}, "r"),
        ({"r": 8, "rank_pattern": {r"layers\.1\..*q_proj": 1 << 30}}, "rank_pattern"),
    ],
)
def test_ranks_beyond_the_limit_are_refused(fields: dict[str, Any], param: str, model: ModelConfig) -> None:
    with pytest.raises(AdapterRejected, match=r"rank \d+; at most 256 is served") as caught:
        targets_of(msgspec.convert(fields, PeftConfig), model)
    assert caught.value.param == param
    fits = {**fields, "r": min(fields["r"], 256), "rank_pattern": {"q_proj": 256}}
    assert max(target.rank for target in targets_of(msgspec.convert(fits, PeftConfig), model)) == 256


def test_a_base_with_fused_projections_is_matched_by_its_own_modules() -> None:
    fused = tiny_config(fused_projections=True)
    matches = match_targets(PeftConfig(target_modules=("qkv_proj", "down_proj")), base_modules(fused))
    assert [target.path for target in matches.targets] == [
        f"model.layers.{layer}.{path}" for layer in range(2) for path in ("self_attn.qkv_proj", "mlp.down_proj")
    ]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            ("q_proj", "v_proj"),
            "names `q_proj`, `v_proj`, which .*; it has qkv_proj, o_proj, gate_up_proj, down_proj, emb",
        ),
        (None, "`target_modules` is missing, and PEFT has no default for this base model"),
    ],
)
def test_what_a_base_with_fused_projections_lacks_is_refused(targets: tuple[str, ...] | None, message: str) -> None:
    with pytest.raises(AdapterRejected, match=message):
        match_targets(PeftConfig(target_modules=targets), base_modules(tiny_config(fused_projections=True)))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("names", [("qkv_proj", "o_proj", "k_proj"), ("up_proj", "layers.0.mlp.gate_up_proj")])
def test_fused_and_separate_names_of_one_module_are_refused(names: tuple[str, ...], fused: bool) -> None:
    base = base_modules(tiny_config(fused_projections=fused))
    with pytest.raises(AdapterRejected, match=r"`target_modules` names both `.*, which are the same weights") as caught:
        match_targets(PeftConfig(target_modules=names), base)
    assert caught.value.param == "target_modules"


def test_an_expression_that_matches_nothing_is_shown_with_the_names_that_there_are(model: ModelConfig) -> None:
    message = (
        r"`target_modules` \(\.\*query\) and the fields .* leave no linear module.*; it has q_proj, k_proj, v_proj"
    )
    with pytest.raises(AdapterRejected, match=message):
        targets_of(PeftConfig(target_modules=".*query"), model)


@pytest.mark.parametrize("stem", ["model.language_model", "language_model.model"])
def test_a_text_model_in_a_wrapper_is_matched_by_its_longer_paths(model: ModelConfig, stem: str) -> None:
    expression = rf"{re.escape(stem)}\.layers\.1\..*_proj"
    targets = match_targets(PeftConfig(target_modules=expression), base_modules(model, stem)).targets
    assert [target.path for target in targets] == [p for n, _, p in linear_modules(model, stem) if n == 1]
    with pytest.raises(AdapterRejected, match="leave no linear module"):
        targets_of(PeftConfig(target_modules=expression), model)


def test_the_embedding_and_the_head_are_matched_by_name_alone(model: ModelConfig) -> None:
    config = PeftConfig(target_modules=("embed_tokens", "lm_head"), rank_pattern={"lm_head": 4})
    targets = targets_of(config, model)
    assert [(target.path, target.rank) for target in targets] == [("model.embed_tokens", 8), ("lm_head", 4)]
    in_layer = PeftConfig(target_modules=("embed_tokens", "lm_head", "o_proj"), layers_to_transform=0)
    assert [target.module for target in targets_of(in_layer, model)] == ["o_proj", "lm_head"], "as PEFT matches them"


def test_one_update_for_embedding_and_head_is_refused(model: ModelConfig) -> None:
    with pytest.raises(AdapterRejected, match="`ensure_weight_tying` can't be applied"):
        targets_of(PeftConfig(target_modules=("q_proj", "lm_head"), ensure_weight_tying=True), model)
    assert targets_of(PeftConfig(target_modules=("q_proj",), ensure_weight_tying=True), model)


def test_a_rank_beyond_the_limit_is_refused_in_the_head_too(model: ModelConfig) -> None:
    with pytest.raises(AdapterRejected, match="gives `lm_head` rank 257; at most 256 is served") as caught:
        targets_of(PeftConfig(target_modules=("q_proj", "lm_head"), rank_pattern={"lm_head": 257}), model)
    assert caught.value.param == "rank_pattern"


def test_an_activated_adapter_of_the_embedding_is_refused(model: ModelConfig) -> None:
    config = PeftConfig(target_modules=("q_proj", "embed_tokens"), alora_invocation_tokens=(3,))
    with pytest.raises(AdapterRejected, match="`alora_invocation_tokens` can't be applied to `embed_tokens`"):
        targets_of(config, model)
