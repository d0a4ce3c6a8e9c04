"""Kernels that a forward pass launches, in which order and how. Results are tested in engine/test_parity.py."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank
from punica_serve.bench.lone_rank import LoneRank
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cuda import cuda_lora as cuda_lora
from punica_serve.engine.cuda.cuda_lora import CudaLora
from punica_serve.models import activation, collectives, linear, norm, rotary
from punica_serve.models.llama import Llama
from punica_serve.models.model import ForwardBatch
from punica_serve.models.model_weights import dummy_weights
from tiny_config import tiny_config

CPU = torch.device("cpu")
NUM_ROWS = 3
#: Nobody reads its words.
TABLE = LoraTable(torch.empty(0), LoraTableShape(NUM_ROWS, NUM_ROWS, 1))

#: One layer after its input norm, launch by launch. A base-only step is one chain of dependent launches.
BASE_LAYER = [
    "linear 24 -> 64 pdl split_k",
    "rotary_append pdl",
    "attention",
    "linear 32 -> 24 pdl split_k",
    "add_rms_norm pdl",
    "linear 24 -> 80 pdl",
    "silu_and_mul pdl",
    "linear 40 -> 24 pdl split_k",
    "add_rms_norm pdl",
]
#: LoRA runs on the side stream; the operator behind it adds the delta and breaks the chain.
LORA_LAYER = [
    *("side waits for main", "shrink on side", "expand on side"),
    *("linear 24 -> 64 pdl split_k", "main waits for side", "rotary_append + delta", "attention"),
    *("side waits for main", "shrink on side", "expand on side"),
    *("linear 32 -> 24 pdl split_k", "main waits for side", "add_rms_norm + delta"),
    *("side waits for main", "shrink on side", "expand on side", "linear 24 -> 80 pdl", "main waits for side"),
    "silu_and_mul + delta",
    *("side waits for main", "shrink on side", "expand on side"),
    *("linear 40 -> 24 pdl split_k", "main waits for side", "add_rms_norm + delta"),
]


class _Stream:
    """A CUDA stream's name and waits, where there is no GPU."""

    def __init__(self, name: str, launches: list[str]) -> None:
        self.name = name
        self._launches = launches

    def wait_stream(self, other: "_Stream") -> None:
        self._launches.append(f"{self.name} waits for {other.name}")


class _Recorder:
    """Attention over an empty cache, and the launches of a step in order. SGMV for GPUs is recorded and not run."""

    def __init__(self, model: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[str] = []
        self.slot_mapping = torch.full((NUM_ROWS,), -1)
        self.side = _Stream("side", self.launches)
        self._stream = "main"
        self._cache = KvCache(model, num_pages=1, page_size=4, dtype=torch.float32, device=CPU)
        main = _Stream("main", self.launches)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
        monkeypatch.setattr(torch.cuda, "stream", self._on)
        for module, name in (
            *((linear, "linear"), (norm, "rms_norm"), (collectives, "add_rms_norm")),
            (collectives, "sum_parts"),
            *((rotary, "rotary_append"), (activation, "silu_and_mul"), (activation, "gelu_and_mul")),
        ):
            monkeypatch.setattr(module, name, self._recorded(name, getattr(module, name)))
        for name in ("shrink", "expand"):
            monkeypatch.setattr(cuda_lora, name, self._recorded(name, lambda *_, **__: None))

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        self.launches.append("attention")
        return q.flatten(1)

    @contextmanager
    def _on(self, stream: _Stream) -> Iterator[None]:
        self._stream = stream.name
        yield
        self._stream = "main"

    def _recorded(self, name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **flags: bool) -> Any:
            place = "" if self._stream == "main" else f" on {self._stream}"
            shape = f" {args[1].shape[1]} -> {args[1].shape[0]}" if name == "linear" else ""
            fields = args[0] if name == "add_rms_norm" else args
            delta = " + delta" if name in _DELTA_PLACE and fields[_DELTA_PLACE[name]] is not None else ""
            set_flags = "".join(f" {flag}" for flag in sorted(flags) if flags[flag])
            self.launches.append(f"{name}{shape}{place}{delta}{set_flags}")
            return operator(*args, **flags)

        return call


#: The place of the delta among an operator's arguments, or the fields of its one.
_DELTA_PLACE = {"add_rms_norm": 5, "sum_parts": 2, "rotary_append": 8, "silu_and_mul": 2, "gelu_and_mul": 2}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"qkv_bias": True},
        {"qk_norm": True},
        {"is_gemma": True},
        {"qk_norm": True, "is_gemma": True, "norms_behind_blocks": True},
    ],
    ids=["llama", "qwen2", "qwen3", "gemma", "gemma3"],
)
@pytest.mark.parametrize(("with_lora", "layer"), [(False, BASE_LAYER), (True, LORA_LAYER)])
def test_a_layer_is_these_launches(
    monkeypatch: pytest.MonkeyPatch, with_lora: bool, layer: list[str], values: dict[str, bool]
) -> None:
    model = tiny_config(**values)
    recorder = _Recorder(model, monkeypatch)
    pool: Any = LoraPool(model, num_pages=1, dtype=torch.float32, device=CPU)
    tables: Any = {} if not with_lora else dict.fromkeys(LORA_GROUPS, TABLE)
    lora = CudaLora(pool, tables, torch.empty(0), recorder.side)  # type: ignore[arg-type]
    llama = Llama(model, dummy_weights(model, torch.float32, CPU))
    rows = torch.arange(NUM_ROWS)
    llama.logits(llama.forward(ForwardBatch(rows, rows, recorder, lora)), lora)
    if model.is_gemma:
        layer = [launch.replace("silu", "gelu") for launch in layer]
    # The first norm follows torch's embedding, whose end it must wait for.
    assert recorder.launches == ["rms_norm", *layer, *layer, "linear 24 -> 64 pdl"]


class _Two(LoneRank):
    """A rank of two by itself, whose sums over ranks are recorded."""

    def __init__(self, launches: list[str]) -> None:
        super().__init__(Rank(0, 2))
        self._launches = launches

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self._launches.append("all_reduce")
        return super().all_reduce(tensor)


@pytest.mark.parametrize("with_lora", [False, True])
def test_a_rank_adds_up_its_parts_before_each_exchange(monkeypatch: pytest.MonkeyPatch, with_lora: bool) -> None:
    model = tiny_config().shard(Rank(0, 2))
    recorder = _Recorder(model, monkeypatch)
    pool: Any = LoraPool(model, num_pages=1, dtype=torch.float32, device=CPU)
    tables: Any = {} if not with_lora else dict.fromkeys(LORA_GROUPS, TABLE)
    lora = CudaLora(pool, tables, torch.empty(0), recorder.side)  # type: ignore[arg-type]
    llama = Llama(model, dummy_weights(model, torch.float32, CPU), _Two(recorder.launches))
    rows = torch.arange(NUM_ROWS)
    llama.forward(ForwardBatch(rows, rows, recorder, lora))
    exchanges = [launch for launch in recorder.launches if launch.startswith(("sum_parts", "all_reduce", "add_rms"))]
    block = ["sum_parts + delta" if with_lora else "sum_parts pdl", "all_reduce", "add_rms_norm"]
    assert exchanges == ["all_reduce", *block * 4], "the embedding's, then two layers of two blocks"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("values", [{}, {"qkv_bias": True}, {"qk_norm": True}], ids=["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("splits", [2, 4])
def test_a_layer_adds_up_partial_sums(
    monkeypatch: pytest.MonkeyPatch, splits: int, values: dict[str, bool], dtype: torch.dtype
) -> None:
    """A GPU's projections may leave them; a CPU's do not by themselves."""
    model = tiny_config(**values)
    whole = _hidden_and_cache(model, dtype, monkeypatch)

    def in_parts(x: Tensor, weight: Tensor, *, split_k: bool = False, pdl: bool = False) -> Tensor:
        if not split_k:
            return x @ weight.T
        parts = zip(x.float().chunk(splits, dim=1), weight.float().chunk(splits, dim=1), strict=True)
        return torch.stack([some @ their.T for some, their in parts])

    monkeypatch.setattr(linear, "linear", in_parts)
    parted = _hidden_and_cache(model, dtype, monkeypatch)
    assert parted[0].dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(parted, whole, rtol=tolerance, atol=tolerance)


def _hidden_and_cache(model: ModelConfig, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, ...]:
    """The hidden states of a step without LoRA, and each layer's keys and values."""
    recorder = _Recorder(model, monkeypatch)
    recorder.slot_mapping = torch.arange(NUM_ROWS)
    lora = CudaLora(LoraPool(model, num_pages=1, dtype=dtype, device=CPU), {}, torch.empty(0), recorder.side)  # type: ignore[arg-type]
    llama = Llama(model, dummy_weights(model, dtype, CPU))
    rows = torch.arange(NUM_ROWS)
    hidden = llama.forward(ForwardBatch(rows, rows, recorder, lora))
    assert sum("split_k" in launch for launch in recorder.launches) == 3 * model.num_hidden_layers
    return hidden, *(cached for layer in range(model.num_hidden_layers) for cached in recorder.cache(layer))
