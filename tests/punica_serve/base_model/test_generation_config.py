"""Which of a model's own defaults are applied, and which are told not to be."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from punica_serve.base_model.generation_config import (
    APPLIED,
    NOT_IMPLEMENTED,
    WITHOUT_EFFECT,
    GenerationDefaults,
    read_generation_defaults,
)
from punica_serve.errors import ModelRejected


def read(folder: Path, generation: dict[str, Any] | None, **config: Any) -> GenerationDefaults:
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_generation_defaults(
        config, folder / "config.json", eos_token_id=2, vocab_size=128, max_position_embeddings=512
    )


def test_each_field_of_transformers_is_in_one_table() -> None:
    tables = [APPLIED, WITHOUT_EFFECT, frozenset(NOT_IMPLEMENTED)]
    assert sum(map(len, tables)) == len(frozenset.union(*tables)), "a field is in two tables"
    known = {name for name in vars(GenerationConfig()) if name != "_original_object_hash"}
    assert known <= frozenset.union(*tables), "a field of this transformers is in none"


def test_the_documentation_lists_what_is_applied_and_what_is_not() -> None:
    text = (Path(__file__).parents[3] / "docs/serving.md").read_text()
    assert [name for name in (*APPLIED, *NOT_IMPLEMENTED) if f"`{name}" not in text] == []


@pytest.mark.parametrize("name", NOT_IMPLEMENTED)
def test_transformers_neutral_values_are_not_told(tmp_path: Path, name: str) -> None:
    neutral = GenerationConfig._get_default_generation_params().get(name)
    if name == "max_length":
        neutral = 512  # its default is 20, which save_pretrained() does not write
    assert read(tmp_path, {name: neutral, "do_sample": True}).not_applied == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suppress_tokens", [1, 2]),
        ("begin_suppress_tokens", [3]),
        ("bad_words_ids", [[4]]),
        ("no_repeat_ngram_size", 3),
        ("encoder_no_repeat_ngram_size", 3),
        ("encoder_repetition_penalty", 1.5),
        ("forced_bos_token_id", 0),
        ("forced_eos_token_id", 5),
        ("sequence_bias", [[[4], 2.0]]),
        ("exponential_decay_length_penalty", [5, 1.1]),
        ("guidance_scale", 1.5),
        ("watermarking_config", {"bias": 2.0}),
        ("token_healing", True),
        ("min_length", 7),
        ("max_length", 100),
        ("max_time", 2.5),
        ("num_beams", 4),
        ("num_return_sequences", 2),
        ("penalty_alpha", 0.6),
        ("dola_layers", "low"),
        ("constraints", ["x"]),
        ("force_words_ids", [[4]]),
    ],
)
@pytest.mark.parametrize("do_sample", [False, True])
def test_a_field_that_would_change_answers_is_told(tmp_path: Path, name: str, value: Any, do_sample: bool) -> None:
    (told,) = read(tmp_path, {name: value, "do_sample": do_sample}).not_applied
    assert told == f"`{name}` of generation_config.json is {value!r}"


@pytest.mark.parametrize("name", ["typical_p", "top_h", "epsilon_cutoff", "eta_cutoff"])
def test_fields_of_sampling_are_told_where_the_model_samples(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, {name: 0.3}).not_applied == ()
    assert read(tmp_path, {name: 0.3, "do_sample": True}).not_applied == (f"`{name}` of generation_config.json is 0.3",)


@pytest.mark.parametrize("name", ["length_penalty", "diversity_penalty", "num_beam_groups", "early_stopping"])
def test_fields_of_beam_search_are_told_where_the_model_searches(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, {name: 2}).not_applied == ()
    assert len(read(tmp_path, {name: 2, "num_beams": 4}).not_applied) == 2


def test_lengths_that_others_overrule_are_not_told(tmp_path: Path) -> None:
    lengths = {"min_length": 7, "min_new_tokens": 1, "max_length": 100, "max_new_tokens": 50}
    assert read(tmp_path, lengths).not_applied == ()


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    (told,) = read(tmp_path, {"suppress_tokens": list(range(10_000))}).not_applied
    assert told.endswith("[0, 1, 2, 3, 4, 5, ...]")


def test_lengths_and_stop_strings_are_applied(tmp_path: Path) -> None:
    given = {"min_new_tokens": 3, "max_new_tokens": 50, "stop_strings": "###"}
    assert read(tmp_path, given) == GenerationDefaults((2,), min_tokens=3, max_tokens=50, stop=("###",))
    assert read(tmp_path, {"stop_strings": ["a", "b"]}).stop == ("a", "b")


def test_without_its_file_they_are_in_the_models_config(tmp_path: Path) -> None:
    given = {"do_sample": True, "temperature": 0.5, "num_beams": 2, "eos_token_id": 2}
    assert read(tmp_path, None, **given) == GenerationDefaults(
        (2,), temperature=0.5, not_applied=("`num_beams` of config.json is 2",)
    )
    assert read(tmp_path, {}, **given) == GenerationDefaults((2,))


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"min_new_tokens": -1}, "`min_new_tokens` is -1; it must be at least 0"),
        ({"max_new_tokens": 0}, "`max_new_tokens` is 0; it must be at least 1"),
        ({"stop_strings": ["a", ""]}, r"`stop_strings\[1\]` is not valid"),
    ],
)
def test_wrong_values_are_refused_by_field(tmp_path: Path, generation: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelRejected, match=f"/generation_config.json: {message}"):
        read(tmp_path, generation)
