"""The folders that come with the package, read by the libraries whose formats they are in."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from punica_serve.demo import exactness
from punica_serve.demo.exactness import load_demo, measure
from punica_serve.demo.notations import NOTATIONS, NUM_INTEGERS
from punica_serve.demo.saving import BASE_NAME
from punica_serve.demo.tokenizer import EOS, build_tokenizer

DEMO = Path(exactness.__file__).parent
MODEL = DEMO / "model"
SAMPLE = (10, 42, 80, 99, 100, 101, 404, 777, 999)
MIN_MARGIN = 0.5


@pytest.fixture
def two_threads() -> Iterator[None]:
    """For long runs, which have the machine for themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _adapter_configs() -> dict[str, dict[str, Any]]:
    return {lora_id: _json(DEMO / "adapters" / lora_id / "adapter_config.json") for lora_id in NOTATIONS}


def _shipped() -> list[Path]:
    return [path for folder in ("model", "adapters") for path in (DEMO / folder).rglob("*") if path.is_file()]


def test_all_files_are_there_and_below_8_mb() -> None:
    assert {path.name for path in MODEL.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    for lora_id in NOTATIONS:
        names = {path.name for path in (DEMO / "adapters" / lora_id).iterdir()}
        assert names == {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(path.stat().st_size for path in _shipped()) < 8_000_000


def test_no_file_names_a_folder_of_the_machine_that_trained_it() -> None:
    for path in _shipped():
        if path.suffix == ".json" and path.name != "tokenizer.json":
            assert "/" not in path.read_text(encoding="utf-8"), path
    assert _json(MODEL / "config.json")["_name_or_path"] == BASE_NAME
    assert {config["base_model_name_or_path"] for config in _adapter_configs().values()} == {BASE_NAME}


def test_the_base_holds_long_streams_and_ends_its_answers(tokenizer: Tokenizer) -> None:
    config, generation = _json(MODEL / "config.json"), _json(MODEL / "generation_config.json")
    assert config["max_position_embeddings"] >= 1024
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert generation["eos_token_id"] == tokenizer.token_to_id(EOS)
    assert not generation.get("do_sample")


def test_the_shipped_tokenizer_is_the_one_the_code_builds(tokenizer: Tokenizer) -> None:
    assert json.loads(tokenizer.to_str()) == json.loads(build_tokenizer().to_str())


def test_transformers_reads_the_shipped_tokenizer() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    prompt = tokenizer("42").input_ids
    assert tokenizer.decode(prompt, skip_special_tokens=True) == "42"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "42"}], return_dict=True)
    assert chat["input_ids"] == prompt


def test_adapters_differ_in_everything_that_batches_mix() -> None:
    configs = list(_adapter_configs().values())
    ranks = {config["r"] for config in configs}
    assert (min(ranks), max(ranks), len(ranks)) == (4, 64, len(configs))
    assert len({frozenset(config["target_modules"]) for config in configs}) >= 4
    assert len({config["lora_alpha"] / config["r"] for config in configs}) >= 3
    assert any(config["use_rslora"] for config in configs)
    assert any(config["rank_pattern"] for config in configs)
    assert any(config["alpha_pattern"] for config in configs)


@pytest.mark.parametrize("lora_id", [None, *NOTATIONS])
def test_a_sample_is_exact_under_transformers_and_peft(lora_id: str | None, tokenizer: Tokenizer) -> None:
    result = measure(load_demo(DEMO, lora_id), tokenizer, lora_id, SAMPLE)
    assert not result.wrong
    assert result.smallest_margin > MIN_MARGIN


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("lora_id", [None, *NOTATIONS])
def test_every_integer_is_exact_under_transformers_and_peft(lora_id: str | None, tokenizer: Tokenizer) -> None:
    result = measure(load_demo(DEMO, lora_id), tokenizer, lora_id, range(NUM_INTEGERS))
    assert not result.wrong
    assert result.smallest_margin > MIN_MARGIN


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_a_long_stream_of_the_base_counts_on(tokenizer: Tokenizer) -> None:
    model = load_demo(DEMO, None)
    prompt = torch.tensor([tokenizer.encode("42").ids])
    ids = model.generate(prompt, do_sample=False, max_new_tokens=1000, eos_token_id=[])[0, prompt.shape[1] :]
    numbers = tokenizer.decode(ids.tolist()).split()[:-1]  # the last may be cut
    assert len(numbers) > 200
    assert numbers == [str(n) for n in range(43, 43 + len(numbers))]
