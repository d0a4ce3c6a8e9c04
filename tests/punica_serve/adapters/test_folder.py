import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from safetensors.numpy import load_file, save_file

from adapter_refusal import refusal
from examples import examples
from punica_serve.adapters.file_reading import ReadBuffer
from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected

Q0_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
Q0_B = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
Q9_A = "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"
K0_A = "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"

SetConfig = Callable[..., None]
EditTensors = Callable[[Callable[[dict[str, np.ndarray]], object]], None]


def test_reads_a_folder(folder: Path, model: ModelConfig) -> None:
    adapter = load_adapter(read_adapter(folder, model), model)
    assert list(adapter.pairs) == [(0, "q_proj"), (0, "up_proj"), (1, "q_proj"), (1, "up_proj")]
    pair = adapter.pairs[0, "q_proj"]
    assert (pair.a.shape, pair.b.shape, pair.rank, pair.scaling) == ((4, 24), (32, 4), 4, 1.0)
    np.testing.assert_array_equal(pair.a.array, load_file(folder / "adapter_model.safetensors")[Q0_A])


def test_the_ref_says_what_the_bytes_are(folder: Path, model: ModelConfig) -> None:
    config = (folder / "adapter_config.json").read_bytes()
    weights = (folder / "adapter_model.safetensors").read_bytes()
    ref = read_adapter(folder, model)
    digests = hashlib.sha256(config).digest() + hashlib.sha256(weights).digest()
    assert ref.digest == hashlib.sha256(digests).hexdigest()
    assert ref.uri == str(folder.resolve())
    assert ref.num_bytes == len(weights)
    assert ref.ranks == {"q_proj": 4, "up_proj": 4}


def test_the_ref_has_the_highest_rank_of_each_module(
    folder: Path, model: ModelConfig, set_config: SetConfig, edit_tensors: EditTensors
) -> None:
    set_config(rank_pattern={r"layers\.0\.self_attn\.q_proj": 6})
    edit_tensors(lambda tensors: tensors.update({Q0_A: np.ones((6, 24)), Q0_B: np.ones((32, 6))}))
    edit_tensors(lambda tensors: tensors.update({name: tensors[name].astype(np.float32) for name in (Q0_A, Q0_B)}))
    adapter = load_adapter(read_adapter(folder, model), model)
    assert adapter.ref.ranks == {"q_proj": 6, "up_proj": 4}
    assert adapter.pairs[0, "q_proj"].scaling == 4 / 6


def test_a_relative_folder_gets_an_absolute_uri(
    folder: Path, model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert read_adapter(Path(folder.name), model).uri == str(folder.resolve())


def test_loads_what_was_registered(folder: Path, model: ModelConfig) -> None:
    ref = read_adapter(folder, model)
    adapter = load_adapter(ref, model)
    assert adapter.ref == ref
    up_b = load_file(folder / "adapter_model.safetensors")[Q0_B.replace("0.self_attn.q", "1.mlp.up")]
    np.testing.assert_array_equal(adapter.pairs[1, "up_proj"].b.array, up_b)


PATTERNS = {"target_modules": ".*(q|up)_proj", "alpha_pattern": {r"layers\.1\..*": 3, "up_proj": 1 / 3}}


def test_the_ref_has_the_scaling_of_each_module_where_they_differ(
    folder: Path, model: ModelConfig, set_config: SetConfig
) -> None:
    assert read_adapter(folder, model).scalings == (1.0,)
    set_config(**PATTERNS)
    ref = read_adapter(folder, model)
    assert ref.scalings == (1.0, 1 / 3 / 4, 3 / 4, 3 / 4)
    scalings = {key: pair.scaling for key, pair in load_adapter(ref, model).pairs.items()}
    assert scalings == dict(
        zip([(0, "q_proj"), (0, "up_proj"), (1, "q_proj"), (1, "up_proj")], ref.scalings, strict=True)
    )


def test_loading_a_registered_adapter_matches_no_pattern(
    folder: Path, model: ModelConfig, set_config: SetConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_config(**PATTERNS)
    ref = read_adapter(folder, model)

    def never(*_: object) -> None:
        raise AssertionError("a worker must not")

    for name in ("parse_peft_config", "lora_targets"):
        monkeypatch.setattr(f"punica_serve.adapters.folder.{name}", never)
    assert load_adapter(ref, model).ref == ref


@pytest.mark.parametrize(
    "changes",
    [
        {"scalings": ()},
        {"scalings": (1.0, 2.0)},
        {"scalings": (1.0,) * 5},
        {"ranks": {"q_proj": 4}},
        {"ranks": {"q_proj": 4, "up_proj": 5}},
    ],
)
def test_a_ref_that_is_not_of_the_file_is_refused(folder: Path, model: ModelConfig, changes: dict[str, Any]) -> None:
    ref = structs.replace(read_adapter(folder, model), **changes)
    with pytest.raises(AdapterRejected, match="register it again"):
        load_adapter(ref, model)


def test_an_adapter_of_another_base_is_refused(folder: Path, model: ModelConfig) -> None:
    """As where a frontend's base model is not the worker's."""
    ref = read_adapter(folder, model)
    with pytest.raises(AdapterRejected, match="8 tensors for 2 modules of the base model"):
        load_adapter(ref, replace(model, num_hidden_layers=1))
    with pytest.raises(AdapterRejected, match="has shape"):
        load_adapter(ref, replace(model, hidden_size=8))


@pytest.mark.parametrize("broken", [False, True])
def test_does_not_load_what_changed_on_disk(folder: Path, model: ModelConfig, broken: bool) -> None:
    ref = read_adapter(folder, model)
    if broken:
        (folder / "adapter_config.json").write_text("{")
    else:
        write_random_adapter(folder, model, rank=4, seed=1, target_modules=("q_proj", "up_proj"))
    with pytest.raises(AdapterRejected, match=f"{folder}: its files changed on disk since") as caught:
        load_adapter(ref, model)
    assert str(folder) not in caught.value.message


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_missing_files_are_named(folder: Path, model: ModelConfig, name: str) -> None:
    (folder / name).unlink()
    error = refusal(folder, model)
    assert error.param == name
    assert name in error.message


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_folder_in_place_of_a_file_is_named(folder: Path, model: ModelConfig, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    assert refusal(folder, model).param == name


@pytest.mark.parametrize("name", ["nowhere", "n" * 5000, "nul\0", "loop"])
def test_a_missing_folder_is_named(tmp_path: Path, model: ModelConfig, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "no such folder" in refusal(tmp_path / name, model).message


def test_torch_can_take_the_arrays_as_they_are(folder: Path, model: ModelConfig) -> None:
    for pair in load_adapter(read_adapter(folder, model), model).pairs.values():
        for array in (pair.a.array, pair.b.array):
            assert array.flags.writeable and array.flags.aligned and array.flags.c_contiguous


def test_pickles_are_refused_with_the_way_out(folder: Path, model: ModelConfig) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    error = refusal(folder, model)
    assert error.param == "adapter_model.bin"
    assert "save_pretrained" in error.message


@pytest.mark.parametrize("extra", ["adapter_model.safetensors.index.json", "adapter_model-00002-of-00002.safetensors"])
def test_weights_in_several_files_are_refused_with_the_way_out(folder: Path, model: ModelConfig, extra: str) -> None:
    (folder / extra).write_bytes(b"{}")
    read_adapter(folder, model)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model-00001-of-00002.safetensors")
    error = refusal(folder, model)
    assert error.param == "adapter_model-00001-of-00002.safetensors"
    assert error.message.startswith("adapter_model-00001-of-00002.safetensors: split adapters are not read")
    assert "load_file, and save_file them together as adapter_model.safetensors" in error.message


def test_a_broken_configuration_names_the_file_and_field(
    folder: Path, model: ModelConfig, set_config: SetConfig
) -> None:
    set_config(use_dora=True)
    error = refusal(folder, model)
    assert error.param == "use_dora"
    assert "adapter_config.json: `use_dora`" in error.message


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        (lambda t: t.pop(Q0_A), Q0_A, "missing"),
        (lambda t: t.pop(Q0_B), Q0_B, "missing"),
        (lambda t: t.update({K0_A: t[Q0_A]}), K0_A, "is not a lora_A or lora_B"),
        (lambda t: t.update({Q9_A: t[Q0_A]}), Q9_A, "is not a lora_A or lora_B"),
        (lambda t: t.update({"lm_head.weight": t[Q0_A]}), "lm_head.weight", "is not a lora_A or lora_B"),
        (lambda t: t.update({Q0_A: t[Q0_A][:3]}), Q0_A, r"has shape \[3, 24\].*need \[4, 24\]"),
        (lambda t: t.update({Q0_A: t[Q0_A][:, :23]}), Q0_A, r"has shape \[4, 23\].*need \[4, 24\]"),
        (lambda t: t.update({Q0_B: t[Q0_B].T}), Q0_B, r"has shape \[4, 32\].*need \[32, 4\]"),
        (lambda t: t.update({Q0_B: t[Q0_B][None]}), Q0_B, r"has shape \[1, 32, 4\]"),
        (lambda t: t[Q0_A].__setitem__((3, 23), np.nan), Q0_A, "NaN or infinity"),
        (lambda t: t[Q0_B].__setitem__((0, 0), np.inf), Q0_B, "NaN or infinity"),
        (lambda t: t.update({Q0_A: t[Q0_A].astype(np.float64)}), Q0_A, "F64"),
        (lambda t: t.update({Q0_A: t[Q0_A].astype(np.int8)}), Q0_A, "I8"),
    ],
)
def test_wrong_tensors_are_named(
    folder: Path,
    model: ModelConfig,
    edit_tensors: EditTensors,
    change: Callable[[dict[str, np.ndarray]], object],
    param: str,
    message: str,
) -> None:
    edit_tensors(lambda tensors: change(tensors))
    with pytest.raises(AdapterRejected, match=message) as caught:
        read_adapter(folder, model)
    assert caught.value.param == param
    assert f"adapter_model.safetensors: tensor `{param}`" in caught.value.message


@pytest.mark.parametrize(
    ("is_fused", "written", "others"),
    [
        (False, "qkv_proj", "q_proj, k_proj, v_proj"),
        (False, "gate_up_proj", "gate_proj, up_proj"),
        (True, "k_proj", "qkv_proj"),
        (True, "up_proj", "gate_up_proj"),
    ],
)
def test_fused_modules_and_separate_ones_in_each_others_place_are_told(
    tmp_path: Path, model: ModelConfig, is_fused: bool, written: str, others: str
) -> None:
    trained_on, base = replace(model, fused_projections=not is_fused), replace(model, fused_projections=is_fused)
    write_random_adapter(tmp_path, trained_on, rank=4, seed=0, target_modules=(written, "down_proj"))
    message = refusal(tmp_path, base).message
    assert f"in the place of `{written}` the base model has {others}: train the adapter on this base" in message


def test_a_tensor_of_a_module_that_there_is_nowhere_is_told_with_those_that_there_are(
    folder: Path, model: ModelConfig, edit_tensors: EditTensors
) -> None:
    edit_tensors(lambda tensors: tensors.update({Q0_A.replace("q_proj", "query"): tensors[Q0_A]}))
    message = refusal(folder, model).message
    assert "; the base model has q_proj, k_proj, v_proj, o_proj, " in message and "lm_head" in message


def test_an_adapter_name_within_tensor_names_is_refused(folder: Path, model: ModelConfig) -> None:
    """Whether PEFT finds such weights or leaves its own in place depends on its version and the name it loads under."""
    path = folder / "adapter_model.safetensors"
    save_file({name.replace(".weight", ".default.weight"): tensor for name, tensor in load_file(path).items()}, path)
    message = refusal(folder, model).message
    assert f"tensor `{Q0_A}` is missing" in message
    assert "lora_A.default.weight" in message


@pytest.mark.parametrize("name", ["tiny", "org/tiny", "/models/tiny/", "", None])
def test_base_names_that_agree_are_silent(
    folder: Path, model: ModelConfig, set_config: SetConfig, caplog: pytest.LogCaptureFixture, name: str | None
) -> None:
    set_config(base_model_name_or_path=name)
    read_adapter(folder, model)
    assert not caplog.records


def test_another_base_name_warns(
    folder: Path, model: ModelConfig, set_config: SetConfig, caplog: pytest.LogCaptureFixture
) -> None:
    set_config(base_model_name_or_path="org/other")
    with caplog.at_level(logging.WARNING):
        ref = read_adapter(folder, model)
        load_adapter(ref, model)
    (record,) = caplog.records
    assert "org/other" in record.getMessage()


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "PeftModelForCausalLM", "DDP", None])
def test_a_base_class_that_may_be_this_one_is_silent(
    folder: Path, model: ModelConfig, set_config: SetConfig, name: str | None
) -> None:
    set_config(auto_mapping={"base_model_class": name, "parent_library": "transformers"})
    read_adapter(folder, replace(model, class_names=("LlamaForCausalLM",)))


def test_an_adapter_of_another_architecture_is_refused(folder: Path, model: ModelConfig, set_config: SetConfig) -> None:
    """A Mistral 7B has projections of the sizes of a Llama 3 8B."""
    set_config(auto_mapping={"base_model_class": "MistralForCausalLM"})
    error = refusal(folder, replace(model, class_names=("LlamaForCausalLM",)))
    assert error.param == "auto_mapping"
    assert "trained on a MistralForCausalLM, and the base model is a LlamaForCausalLM" in error.message


@pytest.mark.parametrize("name", ["org/other", "", None])
def test_strict_base_refuses_another_base_name(
    folder: Path, model: ModelConfig, set_config: SetConfig, name: str | None
) -> None:
    read_adapter(folder, model, strict_base=True)
    set_config(base_model_name_or_path=name)
    assert refusal(folder, model, strict_base=True).param == "base_model_name_or_path"


@settings(max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_another_adapter(data: st.DataObject, folder: Path, model: ModelConfig) -> None:
    write_random_adapter(folder, model, rank=1, seed=0, target_modules=("q_proj",))
    good = read_adapter(folder, model)
    path = folder / data.draw(st.sampled_from(["adapter_config.json", "adapter_model.safetensors"]))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="truncate"):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    # Most of a weights file is weights: aim at its header.
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, min(len(content), 1500) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(content) != path.read_bytes()
    path.write_bytes(content)
    try:
        ref = read_adapter(folder, model)
    except AdapterRejected as error:
        assert changed
        assert str(error).startswith(f"{path}: ")
    else:
        assert (ref.digest != good.digest) == changed


def test_a_configuration_that_is_not_an_object_is_named(folder: Path, model: ModelConfig) -> None:
    (folder / "adapter_config.json").write_text(json.dumps(["r", 4]))
    assert refusal(folder, model).param == "adapter_config.json"


def test_a_reused_buffer_holds_one_adapter_after_the_other(folder: Path, model: ModelConfig, tmp_path: Path) -> None:
    other = write_random_adapter(tmp_path / "other", model, rank=2, seed=1, target_modules=("o_proj",))
    buffer = ReadBuffer()
    refs = {path: read_adapter(path, model) for path in (folder, other)}
    kept = {path: load_adapter(ref, model) for path, ref in refs.items()}
    for path in (folder, other, folder):
        again = load_adapter(refs[path], model, buffer)
        assert np.shares_memory(again.file, buffer.take(1))
        for key, pair in kept[path].pairs.items():
            np.testing.assert_array_equal(again.pairs[key].a.array, pair.a.array)
            np.testing.assert_array_equal(again.pairs[key].b.array, pair.b.array)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.timeout(60)
def test_a_pipe_in_a_files_place_is_refused_and_nobody_waits_for_it(
    folder: Path, model: ModelConfig, name: str
) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused = refusal(folder, model)
    assert refused.message == f"{name}: can't be read: it is not a regular file" and refused.param == name


@pytest.mark.parametrize("alpha", [1e300, -1e40])
def test_a_scaling_that_no_number_format_holds_is_refused_before_it_is_served(
    folder: Path, model: ModelConfig, set_config: SetConfig, alpha: float
) -> None:
    set_config(lora_alpha=alpha)
    refused = refusal(folder, model)
    assert "too large" in refused.message and refused.param == "lora_alpha"


def test_a_weight_that_its_scaling_makes_too_large_is_refused(
    folder: Path, model: ModelConfig, set_config: SetConfig, edit_tensors: EditTensors
) -> None:
    set_config(lora_alpha=40.0)  # rank 4: times 10
    edit_tensors(lambda tensors: tensors[Q0_B].fill(3e37))
    read_adapter(folder, model)
    edit_tensors(lambda tensors: tensors[Q0_B].fill(3.5e37))
    assert f"tensor `{Q0_B}` times its scaling of 10" in refusal(folder, model).message
