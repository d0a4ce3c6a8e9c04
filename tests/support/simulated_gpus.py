"""Simulated GPUs of known size, and requests for them."""

from typing import Any

from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.protocol import AdapterRef, GpuInfo, Request, SamplingParams

VOCAB_SIZE = 97


def gpu_info(**settings: Any) -> GpuInfo:
    """4 requests and 32 pages of 4 tokens, and 4 LoRA pages, unless told otherwise."""
    sizes: dict[str, Any] = {"max_batch_size": 4, "page_size": 4, "num_kv_pages": 32, "num_lora_pages": 4, **settings}
    lora_pages = dict.fromkeys(LORA_GROUPS, sizes.pop("num_lora_pages"))
    return GpuInfo(uuid="SIM-1", device="simulated", num_lora_pages=lora_pages, **sizes)


def make_request(number: int, num_prompt: int = 5, max_tokens: int = 6, adapter: AdapterRef | None = None) -> Request:
    """Arrivals are in the order of numbers; so are seeds."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number)
    return Request(f"r{number:04}", number, tuple(range(1, num_prompt + 1)), params, adapter)


def adapter_ref(name: str, *, rank: int = 8, num_bytes: int = 9_000_000) -> AdapterRef:
    """One page of one group for each 8 ranks."""
    return AdapterRef(name, "", num_bytes, {"q_proj": rank})
