"""Simulated GPUs of known size, and requests for them."""

from typing import Any

from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.performance.lora_times import DistinctLora
from punica_serve.performance.profile import AdapterLoad, DecodeTimes, ModelShape, PerformanceProfile, PrefillTimes
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


def round_profile() -> PerformanceProfile:
    """Round numbers: a prefill takes 10 ms plus 1 ms a token, a copy 1 ms plus 1 ms a megabyte, a rank page 0.5 ms."""
    return PerformanceProfile(
        version=2,
        name="round",
        source="made up",
        device="simulated",
        model=ModelShape(
            num_hidden_layers=2,
            hidden_size=64,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=4,
            vocab_size=VOCAB_SIZE,
        ),
        dtypes=("float32",),
        group_size=1,
        max_prefills=1,
        prefill=PrefillTimes(tokens=(1, 100), ms=(11.0, 110.0)),
        decode=DecodeTimes(batch=(1, 11), context=(10, 110), ms=((11.0, 12.0), (21.0, 31.0))),
        lora=DistinctLora(kind="distinct", pages=(0, 10), ms=(0.0, 5.0)),
        adapter_load=AdapterLoad(latency_ms=1.0, gb_per_s=1.0),
    )
