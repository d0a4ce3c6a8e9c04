"""A step of a simulated GPU: which prefills it runs, and with how many decodes."""

from collections.abc import Iterable
from typing import NamedTuple

from punica_serve.batching_rules import chunk_length, next_prefill
from punica_serve.performance.lora_load import LoraAccount, LoraLoad
from punica_serve.simulation.row import Row


class Prefill(NamedTuple):
    """A part of a prompt, or all of it."""

    row: Row
    num_tokens: int


class PlannedStep(NamedTuple):
    """A running step. With nothing to run it only reports preemptions."""

    prefills: tuple[Prefill, ...]
    num_decodes: int
    num_adapters: int
    duration_s: float
    preempted: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        return len(self.prefills) + self.num_decodes

    @property
    def num_prefill_tokens(self) -> int:
        return tokens_of(self.prefills)


def one_prefill(ready: Iterable[Row], budget_tokens: int) -> tuple[Prefill, ...]:
    """The prefill that runs beside decodes, by the engine's rule; none if all rows decode."""
    row = next_prefill(ready)
    return () if row is None else (Prefill(row, chunk_length(row.num_uncached, budget_tokens)),)


def all_prefills(ready: Iterable[Row], budget_tokens: int) -> tuple[Prefill, ...]:
    """The prefills of a step without decodes: first come, first served, the last one cut where the budget ends."""
    prefills = []
    for row in ready:
        if not budget_tokens:
            break
        if not row.is_decoding:
            prefills.append(Prefill(row, chunk_length(row.num_uncached, budget_tokens)))
            budget_tokens -= prefills[-1].num_tokens
    return tuple(prefills)


def tokens_of(prefills: Iterable[Prefill]) -> int:
    """Tokens of all prefills together."""
    return sum([prefill.num_tokens for prefill in prefills])


def lora_of(prefills: Iterable[Prefill]) -> tuple[LoraLoad, int]:
    """The LoRA work of prefills alone, a row each, and their different adapters."""
    account = LoraAccount()
    for row, _ in prefills:
        if row.digest is not None and row.adapter_size is not None:
            account.add(row.digest, row.adapter_size)
    return account.load, account.num_adapters_with(None)
