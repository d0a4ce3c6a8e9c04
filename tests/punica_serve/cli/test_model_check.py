import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blank_weights import write_blank_weights
from punica_serve.base_model.checkpoint import tensor_shapes
from punica_serve.base_model.config_json import read_model_config
from punica_serve.shapes import shape_folder

Cli = Callable[..., tuple[int, str, str]]


def test_a_config_json_alone_says_what_fits_a_gpu(cli: Cli) -> None:
    exit_code, stdout, _ = cli("config", "check", "--model", str(shape_folder("qwen-2.5-7b")), "--gpu", "h200")
    assert exit_code == 0
    assert "would be served: 7,615,616,512 weights in bfloat16" in stdout
    assert "adapters may have ranks to 128 (`engine.max_lora_rank`) and update q_proj," in stdout
    assert "adapters of embed_tokens and lm_head need `engine.lora_vocabulary: true`" in stdout
    assert "no weights and no tokenizer are in " in stdout and "so `up` would refuse it" in stdout
    assert (
        "requests in a step: 32\nprompts in a step: 1, 512 tokens of them\nadapters of rank 16 on the GPU at once: 32\n"
        in stdout
    )
    assert "requests of the longest, 32,768" in stdout


@pytest.mark.parametrize("given", [["--model", "demo:model"], ["demo:model"]])
def test_a_name_that_up_takes_is_checked_as_its_folder(cli: Cli, given: list[str]) -> None:
    exit_code, stdout, _ = cli("config", "check", *given)
    assert exit_code == 0
    assert "/demo/model would be served: " in stdout and "no weights" not in stdout


def test_the_name_of_a_known_shape_says_that_up_would_refuse_it(cli: Cli) -> None:
    exit_code, stdout, _ = cli("config", "check", "--model", "shape:qwen-2.5-7b", "--gpu", "h200")
    assert exit_code == 0
    assert "would be served: 7,615,616,512 weights" in stdout and "so `up` would refuse it" in stdout


def test_a_model_that_also_sees_images_is_served_as_text(cli: Cli, tmp_path: Path) -> None:
    told = "it is served as text: the weights for images are not read, and requests with images are refused"
    text = json.loads((shape_folder("gemma-3-12b") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert told in cli("config", "check", str(tmp_path))[1]
    assert told not in cli("config", "check", "shape:gemma-3-12b")[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere", "model nowhere: there is no such folder; give a folder on this machine in Hugging Face's format"),
        ("demo:nothing", "model demo:nothing: there is no such folder; give a folder on this machine"),
        ("shape:nothing", "model shape:nothing: there is no such shape; give "),
        (".", "model .: the folder has no config.json; give a folder"),
        ("x" * 300, ": there is no such folder; give a folder"),
        ("~nobody-here/model", "model ~nobody-here/model: Could not determine home directory"),
    ],
)
def test_a_name_of_no_model_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    exit_code, _, stderr = cli("config", "check", "--model", given)
    assert exit_code == 2 and message in stderr and stderr.count("\n") == 1
    assert given.startswith("~") or "demo:model, or shape: with one of llama-2-7b, " in stderr


def test_a_context_beyond_the_memory_is_told_with_the_one_that_fits(cli: Cli) -> None:
    exit_code, stdout, _ = cli("config", "check", str(shape_folder("llama-3.1-8b")), "--gpu", "24000000000")
    assert exit_code == 0
    assert "of the model's 131,072; set `engine.max_context` to " in stdout


def test_requests_of_a_model_with_windows_in_all_layers_are_counted_by_what_each_may_hold(
    cli: Cli, tmp_path: Path
) -> None:
    """17.4 GiB leave pages for 12,782 tokens: far from a whole context, and enough for two requests of any length."""
    config = json.loads((shape_folder("mistral-7b") / "config.json").read_text()) | {"sliding_window": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    exit_code, stdout, _ = cli("config", "check", str(tmp_path), "--gpu", "18700000000")
    assert exit_code == 0
    assert (
        ", 2 requests of the longest, 32,768\npages behind the window of 4,096 tokens are given back: a request "
        in stdout
    )
    assert "holds 4,624 tokens at most\nrequests of 2,048 tokens in the KvCache: 6\n" in stdout


def test_a_model_with_windows_in_some_layers_keeps_all_pages(cli: Cli) -> None:
    exit_code, stdout, _ = cli("config", "check", str(shape_folder("gemma-3-12b")), "--gpu", "h200")
    assert exit_code == 0
    assert "40 of 48 layers see 1,024 tokens, the others the whole context, so a request keeps all its pages" in stdout


def test_a_model_that_does_not_fit_is_told_with_the_sizes(cli: Cli) -> None:
    exit_code, _, stderr = cli("config", "check", str(shape_folder("qwen-2.5-32b")), "--gpu", "24000000000")
    assert exit_code == 2
    assert "does not fit 24000000000: of 22.4 GiB the engine uses 90%; the weights take 61.0 GiB" in stderr


def test_the_largest_steps_that_fit_are_told(cli: Cli) -> None:
    exit_code, stdout, _ = cli("config", "check", "shape:llama-2-7b", "--gpu", "h200")
    told = (
        r"steps of 32 requests and 512 prompt tokens take 0\.1 GiB at least; 13\.1 GiB are left for them, room for no"
    )
    assert exit_code == 0
    assert re.search(rf"^{told} more than 10\d,\d\d\d prompt tokens or 18,\d\d\d requests$", stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("prefill_budget_tokens: 200000", "lower `engine.prefill_budget_tokens` to 104"),
        ("max_batch_size: 30000", "lower `engine.max_batch_size` to 18"),
        ("num_kv_pages: 20000", "and weights and pools leave 0.0 GiB; lower `engine.num_kv_pages` to 14"),
    ],
)
def test_steps_that_do_not_fit_are_refused_with_the_number_that_fits(
    cli: Cli, tmp_path: Path, settings: str, message: str
) -> None:
    exit_code, _, stderr = _check_7b(cli, tmp_path, settings)
    assert exit_code == 2 and message in stderr and "Traceback" not in stderr


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            "num_kv_pages: 2048",
            "the KvCache 16.0 GiB, by `engine.num_kv_pages`\n.*tokens of context: 32,768, 8 requests of the longest,"
            " 4,096\nrequests of 2,048 tokens in the KvCache: 16\n",
        ),
        (
            "num_kv_pages: 100",
            "tokens of context: 1,600 of the model's 4,096; set `engine.max_context` to 1600 or less",
        ),
    ],
)
def test_a_fixed_kv_cache_is_told_instead_of_what_would_fit(cli: Cli, tmp_path: Path, settings: str, told: str) -> None:
    exit_code, stdout, _ = _check_7b(cli, tmp_path, settings)
    assert exit_code == 0 and re.search(told, stdout, re.DOTALL)


def test_a_lora_pool_that_is_too_large_is_refused_with_the_pages_that_fit(cli: Cli, tmp_path: Path) -> None:
    exit_code, _, stderr = _check_7b(cli, tmp_path, "num_lora_pages: 100000, num_kv_pages: 2048")
    assert exit_code == 2
    lower = re.search(r"; lower `engine\.num_lora_pages` to (\d+) or less, or take a larger GPU, ", stderr)
    assert lower is not None
    fits, _, _ = _check_7b(cli, tmp_path, f"num_lora_pages: {lower[1]}, num_kv_pages: 2048")
    assert fits == 0


def test_a_fixed_lora_pool_is_not_blamed_for_weights_that_do_not_fit(cli: Cli, tmp_path: Path) -> None:
    exit_code, _, stderr = _check_7b(cli, tmp_path, "num_lora_pages: 128", "12000000000")
    assert exit_code == 2 and "; take a larger GPU, or a larger group" in stderr


def _check_7b(cli: Cli, folder: Path, settings: str, gpu: str = "h200") -> tuple[int, str, str]:
    engine = f"model: 'shape:llama-2-7b', tokenizer: 'demo:model', load_format: dummy, {settings}"
    (folder / "config.yaml").write_text(f"engine: {{{engine}}}\n")
    return cli("config", "check", str(folder / "config.yaml"), "--gpu", gpu)


def test_a_group_is_told_what_each_of_its_ranks_has(cli: Cli) -> None:
    folder = str(shape_folder("llama-3.1-70b"))
    exit_code, _, stderr = cli("config", "check", folder, "--gpu", "h200")
    assert exit_code == 2 and "take a larger GPU, or a larger group: " in stderr
    exit_code, stdout, _ = cli("config", "check", folder, "--gpu", "h200", "--tensor-parallel", "4")
    assert exit_code == 0
    assert "h200: each of 4 ranks: of " in stdout and "group of 4: each rank has 32.86 GiB of 131.4 GiB of " in stdout


def test_a_group_that_does_not_divide_a_folders_model_is_refused(cli: Cli) -> None:
    exit_code, _, stderr = cli("config", "check", str(shape_folder("qwen-2.5-7b")), "--tensor-parallel", "8")
    assert exit_code == 2 and "a group of 8 ranks can't divide this model: `num_attention_heads` of 28" in stderr


def test_a_whole_folder_lacks_nothing(cli: Cli, model_folder: Path) -> None:
    exit_code, stdout, _ = cli("config", "check", str(model_folder))
    assert exit_code == 0 and "no weights" not in stdout and "GiB" not in stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lm_head.weight": None}, "lack tensor `lm_head.weight`, which config.json asks for; take weights and"),
        ({"model.norm.bias": (16,)}, "hold tensor `model.norm.bias`, which the model does not read; take weights and"),
        ({"model.norm.weight": (8,)}, "tensor `model.norm.weight` in "),
    ],
)
def test_weights_of_another_model_are_refused_before_the_start(
    cli: Cli, write_config: Callable[..., Path], model_folder: Path, change: dict[str, Any], message: str
) -> None:
    shapes = tensor_shapes(read_model_config(model_folder)) | change
    write_blank_weights(model_folder, {name: shape for name, shape in shapes.items() if shape is not None})
    for argument in (model_folder, write_config()):
        exit_code, _, stderr = cli("config", "check", str(argument))
        assert exit_code == 2 and message in stderr


def test_a_model_that_is_not_served_is_refused_by_field(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    exit_code, _, stderr = cli("config", "check", str(tmp_path))
    assert exit_code == 2 and "`model_type` is 'gpt_oss', a mixture of experts" in stderr


def test_a_config_says_what_fits_with_its_own_settings(cli: Cli) -> None:
    """The demo's adapter of rank 64 makes `auto` and the line about adapters larger; its pages are a number."""
    exit_code, stdout, _ = cli("config", "check", "demo", "--gpu", "h100")
    assert exit_code == 0 and "h100: of 74.5 GiB" in stdout and "roman" in stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-3.1-8b", "--gpu", "h20"], "`--gpu` 'h20' is not known"),
        (["llama-3.1-8b", "--gpu", "9" * 5000], "is not known; give h200"),
        (["llama-3.1-8b", "--gpu", "\u0663"], "`--gpu` '\u0663' is not known"),
        (["demo", "--gpu", "h20"], "`--gpu` 'h20' is not known; give h200, h100, a100-80, or a number of bytes"),
        ([], "give a config or a model folder"),
        (["demo", "--model", "x"], "give a config or a model folder"),
        (["demo", "--tensor-parallel", "2"], "`--tensor-parallel` goes with a model folder; a config file has"),
    ],
)
def test_options_that_say_nothing_are_refused(cli: Cli, arguments: list[str], message: str) -> None:
    exit_code, _, stderr = cli("config", "check", *arguments)
    assert exit_code == 2 and message in stderr


@pytest.mark.parametrize(
    ("num_kept", "told"), [(-1, "and its header describes "), (9, "and its header alone ends at ")]
)
def test_weights_cut_short_are_refused_with_both_sizes_in_a_folder_and_in_a_config(
    cli: Cli, write_config: Callable[..., Path], model_folder: Path, num_kept: int, told: str
) -> None:
    weights = model_folder / "model.safetensors"
    weights.write_bytes(kept := weights.read_bytes()[:num_kept])
    for argument in (model_folder, write_config()):
        exit_code, stdout, stderr = cli("config", "check", str(argument))
        assert exit_code == 2 and "would be served" not in stdout
        assert f"{weights} is cut short: it has {len(kept):,} bytes, {told}" in stderr and "download it again" in stderr


def _lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def _lose_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _lose_the_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")


def _pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _replace_by_a_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def _replace_by_a_dangling_link(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("gone")


def _lose_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("break_folder", "message"),
    [
        (_lose_a_shard, "index.json names 'model-2.safetensors', which is not in "),
        (_lose_the_tokenizer, "tokenizer.json can't be read: No such file or directory; set `engine.tokenizer` to"),
        (_lose_the_index, "has model-1.safetensors and no model.safetensors.index.json, which says what is in each"),
        (_pickle, "only safetensors weights are read, not pytorch_model.bin: download those, or convert it by"),
        (_replace_by_a_folder, "model.safetensors is a folder, not a file; download it in its place"),
        (_replace_by_a_dangling_link, "model.safetensors is a link to a file that is not there; download it in its"),
        (_lose_the_weights, "only safetensors weights are read: download them"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused_as_by_up_with_what_its_config_says(
    cli: Cli, model_folder: Path, break_folder: Callable[[Path], None], message: str
) -> None:
    break_folder(model_folder)
    exit_code, stdout, stderr = cli("config", "check", str(model_folder))
    assert exit_code == 2 and "would be served: " in stdout
    assert f"{model_folder} is not complete, so `up` would refuse it: " in stderr and message in stderr
    exit_code, _, stderr = cli("up", "--model", str(model_folder))
    assert exit_code == 2 and message in stderr


def test_a_tokenizer_cut_short_is_refused(cli: Cli, model_folder: Path) -> None:
    tokenizer = model_folder / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:-1])
    exit_code, _, stderr = cli("config", "check", str(model_folder))
    assert exit_code == 2 and f"{tokenizer} is not a valid tokenizer" in stderr
