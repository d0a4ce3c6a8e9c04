import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.model_loader import load_base_weights, model_of
from punica_serve.engine.torch_lora import TorchLora
from punica_serve.errors import ConfigError, ModelRejected

CPU = torch.device("cpu")


def _no_lora(model: ModelConfig) -> TorchLora:
    """A step's LoRA, without any."""
    return TorchLora(LoraPool(model, num_pages=1, dtype=torch.bfloat16, device=CPU), lambda digest: {})


def test_dummy_weights_need_config_json_alone(tiny_llama: Path, tiny_model: ModelConfig, tmp_path: Path) -> None:
    shutil.copy(tiny_llama / "config.json", tmp_path)
    with pytest.raises(ModelRejected, match="only safetensors weights are read"):
        load_base_weights(EngineConfig(model=tmp_path), tiny_model, torch.float32, CPU)
    config = EngineConfig(model=tmp_path, load_format="dummy")
    model = model_of(tiny_model, load_base_weights(config, tiny_model, torch.bfloat16, CPU))
    logits = model.logits(torch.ones(1, 32, dtype=torch.bfloat16), _no_lora(tiny_model))
    assert logits.isfinite().all() and logits.std() > 0


def test_a_model_that_does_not_fit_says_what_it_takes(tiny_llama: Path, tiny_model: ModelConfig) -> None:
    huge = replace(tiny_model, vocab_size=1 << 50)
    with pytest.raises(ConfigError, match=r"the base model in float16 does not fit cpu: it takes \d+\.\d GiB, .*dtype"):
        load_base_weights(EngineConfig(model=tiny_llama, load_format="dummy"), huge, torch.float16, CPU)


@pytest.mark.gpu
def test_a_gpu_holds_the_model_and_one_tensor_at_most(tiny_llama: Path, tiny_model: ModelConfig) -> None:
    gpu = torch.device("cuda", 0)
    config = EngineConfig(model=tiny_llama)
    torch.cuda.reset_peak_memory_stats(gpu)
    before = torch.cuda.memory_allocated(gpu)
    model = model_of(tiny_model, load_base_weights(config, tiny_model, torch.bfloat16, gpu))
    held, peak = torch.cuda.memory_allocated(gpu) - before, torch.cuda.max_memory_allocated(gpu) - before
    largest = max(97 * 32, 48 * 32) * 4 + 512  # in the checkpoint's float32
    # The rotary tables come last, so the peak is theirs or a tensor's conversion.
    assert peak <= held + max(largest, 4 * 256 * 8 * 4)
    expected = model_of(tiny_model, load_base_weights(config, tiny_model, torch.bfloat16, CPU))
    hidden, lora = torch.randn(3, 32, dtype=torch.bfloat16), _no_lora(tiny_model)
    torch.testing.assert_close(
        model.logits(hidden.to(gpu), lora).cpu(), expected.logits(hidden, lora), atol=0.05, rtol=0.05
    )
