"""Runs planned steps: the interface of a device, and its plain implementation on a CPU."""

import time
from collections.abc import Sequence as Series
from typing import Protocol

import torch

from punica_serve.engine.adapters.layer_arrival import Arrival, ArrivalFailed
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.batching.step_rows import build_rows
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.torch_exchange import time_exchanges
from punica_serve.engine.sampler import SampledToken, Sampler
from punica_serve.engine.torch_attention import TorchAttention
from punica_serve.engine.torch_lora import ArrivalOf, PagesOf, TorchLora
from punica_serve.models.collectives import Collectives
from punica_serve.models.model import ForwardBatch, Model


class LaunchedStep(Protocol):
    """A step that was given to the device, which may not have finished it."""

    #: When its launch waited no longer for earlier inputs, when its inputs were queued, and when its forward pass was;
    #: see ``LaunchTimes``.
    phases_ns: tuple[int, int, int]
    #: Whether the device had finished the step before when this one's forward pass was queued, and so was idle.
    is_late: bool

    @property
    def has_ended(self) -> bool:
        """Whether the device has finished it. Never waits."""
        ...

    def sampled_tokens(self) -> Series[SampledToken | None]:
        """The token of each of ``StepPlan.sampled``, None if its logits are not finite. Waits for the device."""
        ...


class StepRunner(Protocol):
    """One model on one device."""

    #: Whether a step may be launched before the tokens of the step before are known.
    overlap_scheduling: bool

    @property
    def newest_end(self) -> torch.cuda.Event | None:
        """The end of the newest launched step on a GPU's stream; None if ``launch`` returns when the step has ended."""
        ...

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Starts a step. The caller must keep the pages and adapters that it reads until it has ended.

        Raises ArrivalFailed if the adapter that its prefill waits for will not arrive; the step has done nothing then.
        """
        ...


def arrival_for(plan: StepPlan, arrival_of: ArrivalOf) -> Arrival | None:
    """The copy that a step must wait for, layer by layer: its only prefill's adapter may still be arriving."""
    digests = (chunk.digest for chunk in plan.prefills)
    return next((arrival for digest in digests if digest is not None and (arrival := arrival_of(digest))), None)


class FinishedStep:
    """A step that ended within its launch."""

    has_ended = True
    is_late = True

    def __init__(self, sampled_tokens: Series[SampledToken | None], phases_ns: tuple[int, int, int]) -> None:
        self._sampled_tokens = sampled_tokens
        self.phases_ns = phases_ns

    def sampled_tokens(self) -> Series[SampledToken | None]:
        return self._sampled_tokens


class CpuRunner:
    """Runs steps in plain torch, within their launch."""

    overlap_scheduling = False
    newest_end: torch.cuda.Event | None = None

    def __init__(
        self,
        model: Model,
        cache: KvCache,
        lora_pool: LoraPool,
        sampler: Sampler,
        pages_of: PagesOf,
        arrival_of: ArrivalOf,
        collectives: Collectives,
    ) -> None:
        self._model = model
        self._attention = TorchAttention(cache, model.config.spec)
        self._lora = TorchLora(lora_pool, pages_of, collectives)
        self._arrival_of = arrival_of
        self._sampler = sampler
        self._collectives = collectives
        self._device = cache.pool.device

    def time_exchanges(self, job: AssistJob) -> float:
        """Seconds of one exchange with CPU processes of a job of the first group alone, which has just begun."""
        return time_exchanges(job)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> FinishedStep:
        began_ns = time.monotonic_ns()
        batch = build_rows(plan, self._device)
        self._attention.plan(plan, batch)
        arrival, sampled_rows = arrival_for(plan, self._arrival_of), batch.sampled_rows.tolist()
        self._lora.plan(batch.segments, arrival, plan.assist, sampled_rows=sampled_rows)
        planned_ns = time.monotonic_ns()
        hidden = self._model.forward(ForwardBatch(batch.token_ids, batch.rotary_positions, self._attention, self._lora))
        if plan.is_early and not self._has_arrived():
            raise ArrivalFailed
        phases_ns = (began_ns, planned_ns, time.monotonic_ns())
        if not plan.sampled:
            return FinishedStep((), phases_ns)
        logits = self._model.logits(hidden[batch.sampled_rows], self._lora).float()
        sampled = self._sampler.launch(logits, plan.sampled, range(len(plan.sampled)))
        return FinishedStep(sampled.read(), phases_ns)

    def _has_arrived(self) -> bool:
        """Whether every rank has found the weights that it needed: all ranks decide alike, in one exchange."""
        num_failed = torch.tensor([float(self._lora.has_failed)], device=self._device)
        return not self._collectives.all_reduce(num_failed).item()
