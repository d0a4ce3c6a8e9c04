"""Fixtures that several rooms share: tiny random models in Hugging Face's format."""

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.process.memory_tuning import freeze_gc

#: `browser` and `tab`, for the rooms that look at pages.
pytest_plugins = ("browser_fixtures",)

HAS_GPU = os.path.exists("/dev/nvidiactl")

if not HAS_GPU:
    # Read when triton is imported: without a GPU its kernels are tested in its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"

# Tensors here are tiny: threads would cost more than they do. Also what the tests start takes it from here.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The collector would walk thousands of modules and tests again and again, in a fifth of all time.
gc.set_threshold(20_000, 10, 20)

# The same examples in every run, few and none too slow. The slow tier has `--hypothesis-profile=ci` draw all of them;
# `default` draws others each time.
settings.register_profile("few", settings.get_profile("ci"), max_examples=25)
settings.load_profile("few")


def pytest_collection_finish() -> None:
    """The collector leaves alone what is there before the first test."""
    freeze_gc()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not HAS_GPU and item.get_closest_marker("gpu"):
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture(autouse=True)
def _own_garbage(request: pytest.FixtureRequest) -> Iterator[None]:
    """A connection that a slow test leaves open fails that test, and no later one in which it happens to be found."""
    yield
    if request.node.get_closest_marker("slow"):
        gc.collect()


@pytest.fixture
def no_collections() -> Iterator[None]:
    """The garbage collector stands still, so what is free again was in no cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps the default `data_folder` out of the home folder."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"])
def any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs the test under each umask."""
    before = os.umask(request.param)
    try:
        yield
    finally:
        os.umask(before)


def _write_model(folder: Path, model_type: str, **overrides: Any) -> Path:
    """A random model folder, saved by transformers, whose weights are large enough that greedy choices are clear."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": None,
        "initializer_range": 0.3,
    }
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**settings, **overrides}))
    for name, weight in model.named_parameters():
        if name.endswith(("bias", "norm.weight")) and "llama" not in model_type:  # zeros and ones would hide mistakes
            torch.nn.init.normal_(weight, mean=0.5)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """One token for each printable ASCII character, from 1 on; 0 ends a sequence."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab = {"<eos>": 0, **{chr(code): code - 31 for code in range(32, 127)}}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


@pytest.fixture(scope="session")
def make_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a random Llama folder; keywords override LlamaConfig's."""
    return lambda **overrides: _write_model(tmp_path_factory.mktemp("llama"), "llama", **overrides)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a random model folder of the `model_type`; keywords override its config's."""
    return lambda model_type, **overrides: _write_model(tmp_path_factory.mktemp(model_type), model_type, **overrides)


@pytest.fixture(scope="session")
def tiny_llama(make_llama: Callable[..., Path]) -> Path:
    """A random Llama of two layers with grouped-query attention; token 0 ends a sequence."""
    return make_llama()


@pytest.fixture(scope="session")
def tiny_model(tiny_llama: Path) -> ModelConfig:
    return read_model_config(tiny_llama)
