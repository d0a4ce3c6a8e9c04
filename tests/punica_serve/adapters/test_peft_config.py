import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from peft import LoraConfig

from punica_serve.adapters.peft_config import (
    MAX_BASE_NAME_CHARS,
    MAX_NAMES,
    MAX_PATTERN_CHARS,
    PeftConfig,
    parse_peft_config,
)
from punica_serve.errors import AdapterRejected


def parse(**fields: Any) -> PeftConfig:
    return parse_peft_config(json.dumps({"peft_type": "LORA", **fields}).encode())


def refusal(**fields: Any) -> AdapterRejected:
    with pytest.raises(AdapterRejected) as caught:
        parse(**fields)
    return caught.value


def test_defaults_are_pefts() -> None:
    config, peft = parse(), LoraConfig()
    assert (config.r, config.lora_alpha, config.use_rslora) == (peft.r, peft.lora_alpha, peft.use_rslora)
    assert (config.target_modules, config.exclude_modules, config.layers_to_transform) == (None, None, None)


def test_what_peft_saves_by_default_is_accepted() -> None:
    saved = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]).to_dict()
    saved["target_modules"] = sorted(saved["target_modules"])
    assert parse(**saved).target_modules == ("q_proj",)


def test_applied_fields_are_read() -> None:
    config = parse(
        r=4,
        lora_alpha=2.5,
        use_rslora=True,
        rank_pattern={"q_proj": 8},
        alpha_pattern={"q_proj": 1},
        target_modules=["q_proj", "v_proj"],
        exclude_modules="model.*",
        layers_to_transform=[0, 1],
        layers_pattern="layers",
        base_model_name_or_path="org/base",
    )
    assert config == PeftConfig(
        r=4,
        lora_alpha=2.5,
        use_rslora=True,
        rank_pattern={"q_proj": 8},
        alpha_pattern={"q_proj": 1.0},
        target_modules=("q_proj", "v_proj"),
        exclude_modules="model.*",
        layers_to_transform=(0, 1),
        layers_pattern="layers",
        base_model_name_or_path="org/base",
    )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ('"r": 4, "lora_alpha": 8, "r": 8', "r"),
        ('"r": 4, "r": 4', "r"),
        ('"use_dora": true, "use_dora": false', "use_dora"),
    ],
)
def test_a_field_that_is_there_twice_is_refused(fields: str, name: str) -> None:
    with pytest.raises(AdapterRejected, match=f"`{name}` is there twice") as caught:
        parse_peft_config(f'{{"peft_type": "LORA", {fields}}}'.encode())
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ('"rank_pattern": {"q_proj": 2, "k": 4, "q_proj": 8}', "`rank_pattern` has `q_proj` twice", "rank_pattern"),
        ('"alpha_pattern": {"q": 2, "q": 2}', "`alpha_pattern` has `q` twice", "alpha_pattern"),
        ('"of": {"the": {"a": 1, "a": 2}}', "`of.the` has `a` twice", "of"),
        ('"of": [[{"x": {"a": 1, "a": 2}}]]', "`of.x` has `a` twice", "of"),
    ],
)
def test_a_key_that_is_there_twice_is_refused_with_its_place(fields: str, message: str, param: str) -> None:
    with pytest.raises(AdapterRejected, match=re.escape(message)) as caught:
        parse_peft_config(f'{{"peft_type": "LORA", {fields}}}'.encode())
    assert caught.value.param == param


#: Every field of PEFT's LoraConfig by which an adapter can mean more than a low-rank update of linear modules.
FEATURES = {
    "use_dora": True,
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "trainable_token_indices": [1, 2],
    "megatron_config": {"tensor_model_parallel_size": 2},
    "layer_replication": [[0, 1], [0, 1]],
    "use_qalora": True,
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "arrow_config": {"top_k": 2},
    "kasa_config": {},
    "monteclora_config": {},
    "use_bdlora": {},
    "velora_config": {},
}

#: Those that change nothing about a saved adapter, with values unlike their defaults.
NO_EFFECT = {
    "bias": "lora_only",
    "corda_config": {"corda_method": "kpm"},
    "eva_config": {"rho": 1.0},
    "fan_in_fan_out": True,
    "inference_mode": True,
    "loftq_config": {"loftq_bits": 2},
    "lora_dropout": 0.3,
    "lora_ga_config": {"scale": "unit"},
    "megatron_core": "my.core",
    "peft_version": "9.9",
    "qalora_group_size": 3,
    "revision": "main",
    "runtime_config": {"ephemeral_gpu_offload": True},
}


def test_every_field_of_peft_is_decided() -> None:
    known = {*FEATURES, *NO_EFFECT, *PeftConfig.__struct_fields__, "peft_type", "task_type"}
    assert set(LoraConfig().to_dict()) - known == set()


@pytest.mark.parametrize("name", FEATURES)
def test_features_that_are_not_applied_are_refused_by_name(name: str) -> None:
    error = refusal(**{name: FEATURES[name]})
    assert error.param == name
    assert f"`{name}`" in error.message


@pytest.mark.parametrize("name", NO_EFFECT)
def test_fields_without_effect_are_accepted(name: str) -> None:
    assert parse(**{name: NO_EFFECT[name]}) == parse()


@pytest.mark.parametrize("value", [True, 1, "on", [0], {"a": 1}])
def test_an_unknown_field_that_is_set_is_refused(value: object) -> None:
    assert refusal(of_the_future=value).param == "of_the_future"


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_an_unknown_field_that_is_empty_is_accepted(value: object) -> None:
    assert parse(of_the_future=value) == parse()


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_16", "olora", "corda", "lora_ga", "new", 1, None, {}])
def test_initialisations_that_change_the_base_are_refused(init: object) -> None:
    error = refusal(init_lora_weights=init)
    assert error.param == "init_lora_weights"
    assert "path_initial_model_for_weight_conversion" in error.message


@pytest.mark.parametrize("init", [True, False, "gaussian", "Gaussian", "eva", "orthogonal", "mica"])
def test_initialisations_that_leave_the_base_are_accepted(init: object) -> None:
    assert parse(init_lora_weights=init) == structs.replace(parse(), init_lora_weights=init)


@pytest.mark.parametrize("init", ["EVA", "Orthogonal"])
def test_initialisations_that_peft_knows_in_small_letters_only(init: str) -> None:
    error = refusal(init_lora_weights=init)
    assert error.param == "init_lora_weights"
    assert error.message == f"`init_lora_weights` is '{init}', which PEFT does not know; write '{init.lower()}'"


def test_loftq_has_advice_of_its_own() -> None:
    """PEFT converts pissa, olora, corda and lora_ga, and not this one."""
    message = refusal(init_lora_weights="loftq").message
    assert "path_initial_model_for_weight_conversion" not in message
    assert "serve them as the base model, and set `init_lora_weights` to true" in message


def test_no_rslora_may_be_null() -> None:
    assert not parse(use_rslora=None).use_rslora


@pytest.mark.parametrize("peft_type", [None, "IA3", "ADALORA", "lora", 1, ["LORA"]])
def test_other_methods_are_refused(peft_type: object) -> None:
    assert refusal(peft_type=peft_type).param == "peft_type"


@pytest.mark.parametrize("task_type", ["SEQ_CLS", "FEATURE_EXTRACTION", 7])
def test_other_tasks_are_refused(task_type: object) -> None:
    assert refusal(task_type=task_type).param == "task_type"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("r", 0),
        ("r", "8"),
        ("r", 8.0),
        ("r", True),
        ("r", None),
        ("lora_alpha", "16"),
        ("use_rslora", 1),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", ["q_proj"]),
        ("alpha_pattern", {"q_proj": "x"}),
        ("target_modules", 3),
        ("target_modules", ["q_proj", 3]),
        ("layers_to_transform", "1"),
        ("layers_to_transform", -1),
        ("layers_to_transform", [0, True]),
        ("layers_pattern", 3),
        ("base_model_name_or_path", 3),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert error.param == name
    assert f"`{name}`" in error.message


@pytest.mark.parametrize("fields", [{"layers_to_transform": 0}, {"layers_to_transform": [0], "layers_pattern": "h"}])
def test_layers_with_a_regular_expression_are_refused_as_by_peft(fields: dict[str, Any]) -> None:
    assert refusal(target_modules=".*q_proj", **fields).param == "layers_to_transform"
    with pytest.raises(ValueError, match="layers_to_transform"):
        LoraConfig(target_modules=".*q_proj", **fields)


def test_a_layers_pattern_alone_is_refused_as_by_peft() -> None:
    assert refusal(target_modules=["q_proj"], layers_pattern="layers").param == "layers_pattern"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"peft_type": "LORA", "r": 4',
        b'{"peft_type": "LORA", "lora_alpha": NaN}',
        b'{"peft_type": "LORA", "lora_alpha": 1e999}',
        b'{"peft_type": "LORA", "r": 1' + b"0" * 5000 + b"}",
        b'{"peft_type": "LORA", "base_model_name_or_path": "\\ud800"}',
    ],
)
def test_text_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(AdapterRejected, match="JSON"):
        parse_peft_config(text)


def test_long_values_are_cut_in_messages() -> None:
    assert len(refusal(of_the_future="x" * 10_000).message) < 500


NAMES = [f"n{number}" for number in range(MAX_NAMES + 1)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_modules", NAMES),
        ("exclude_modules", NAMES),
        ("rank_pattern", dict.fromkeys(NAMES, 4)),
        ("alpha_pattern", dict.fromkeys(NAMES, 4.0)),
        ("layers_to_transform", list(range(MAX_NAMES + 1))),
    ],
)
def test_a_list_has_a_longest_length(field: str, value: list[object] | dict[str, object]) -> None:
    error = refusal(**{field: value})
    assert (
        error.param,
        f"`{field}` has {MAX_NAMES + 1} entries, more than the limit of {MAX_NAMES}" in error.message,
    ) == (
        field,
        True,
    )
    fits = value[1:] if isinstance(value, list) else dict(list(value.items())[1:])
    assert len(getattr(parse(**{field: fits}), field)) == MAX_NAMES


@pytest.mark.parametrize(
    ("field", "wrap"),
    [
        ("target_modules", lambda text: text),
        ("exclude_modules", lambda text: text),
        ("rank_pattern", lambda text: {text: 4}),
        ("alpha_pattern", lambda text: {text: 4.0}),
    ],
)
def test_an_expression_has_a_longest_length(field: str, wrap: Callable[[str], object]) -> None:
    error = refusal(**{field: wrap("x" * (MAX_PATTERN_CHARS + 1))})
    assert (error.param, f"the limit is {MAX_PATTERN_CHARS}" in error.message) == (field, True)
    assert getattr(parse(**{field: wrap("x" * MAX_PATTERN_CHARS)}), field)


def test_the_base_models_name_has_a_longest_length() -> None:
    error = refusal(base_model_name_or_path="x" * (MAX_BASE_NAME_CHARS + 1))
    assert error.param == "base_model_name_or_path"
    assert "has 4097 characters; the limit is 4096" in error.message
    assert parse(base_model_name_or_path="x" * MAX_BASE_NAME_CHARS).base_model_name_or_path


def test_a_layers_pattern_has_a_longest_length() -> None:
    fields = {"target_modules": ["q_proj"], "layers_to_transform": [0]}
    assert refusal(**fields, layers_pattern=NAMES).param == "layers_pattern"
    assert refusal(**fields, layers_pattern=["x" * (MAX_PATTERN_CHARS + 1)]).param == "layers_pattern"


def test_a_name_in_a_list_is_no_expression() -> None:
    assert not parse(target_modules=["x" * 20_000], exclude_modules=["(.*)*"]).has_expressions


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"target_modules": "All-linear", "exclude_modules": "", "rank_pattern": {}}, False),
        ({"target_modules": ["q_proj"], "layers_to_transform": 1}, False),
        ({"target_modules": ".*q_proj"}, True),
        ({"exclude_modules": "x"}, True),
        ({"rank_pattern": {"q_proj": 4}}, True),
        ({"alpha_pattern": {"q_proj": 4}}, True),
        ({"target_modules": ["q_proj"], "layers_to_transform": 1, "layers_pattern": "layers"}, True),
    ],
)
def test_says_whether_it_holds_an_expression(fields: dict[str, Any], expected: bool) -> None:
    assert parse(**fields).has_expressions == expected
