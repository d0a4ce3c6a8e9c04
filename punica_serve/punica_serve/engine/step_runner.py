"""Runs planned steps: what the engine asks of a device, and the plain way that a CPU answers it."""

from collections.abc import Sequence as Series
from typing import Protocol

import torch

from punica_serve.engine.attention import TorchPagedAttention
from punica_serve.engine.batch import build_batch
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.lora_batch import PagesOf, TorchLora
from punica_serve.engine.lora_pool import LoraPool
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.sampler import Draw, Sampler
from punica_serve.models.llama import Llama


class LaunchedStep(Protocol):
    """A step that the device has been given, and may not have finished."""

    def draws(self) -> Series[Draw | None]:
        """What was drawn for each of ``StepPlan.sampled``, None where it is not finite. Waits for the device."""
        ...


class StepRunner(Protocol):
    """One model on one device."""

    #: Whether a step may be launched before the tokens of the one before it are known.
    runs_ahead: bool
    #: Behind the newest launched step on a GPU's stream; None where steps have ended once they are launched.
    newest_end: torch.cuda.Event | None

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Starts a step. The pages and adapters that it reads are the caller's to keep until it has ended."""
        ...


class DrawnStep:
    """A step that ended while it was launched."""

    def __init__(self, draws: Series[Draw | None]) -> None:
        self._draws = draws

    def draws(self) -> Series[Draw | None]:
        return self._draws


class CpuRunner:
    """Steps in plain torch, each computed when it is launched."""

    runs_ahead = False
    newest_end: torch.cuda.Event | None = None

    def __init__(self, model: Llama, cache: KvCache, lora_pool: LoraPool, sampler: Sampler, pages_of: PagesOf) -> None:
        self._model = model
        self._attention = TorchPagedAttention(cache)
        self._lora = TorchLora(lora_pool, pages_of)
        self._sampler = sampler
        self._device = cache.pool.device

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> DrawnStep:
        batch = build_batch(plan, self._device)
        self._attention.plan(plan, batch)
        self._lora.plan(batch.segments)
        hidden = self._model.forward(batch.token_ids, batch.positions, self._attention, self._lora)
        if not plan.sampled:
            return DrawnStep(())
        logits = self._model.logits(hidden[batch.sampled_rows]).float()
        return DrawnStep(self._sampler.launch(logits, plan.sampled, range(len(plan.sampled))).read())
