"""The rows of a CPU's step: token ids, positions, and where adapters begin. Built once, read by every layer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan


@dataclass(frozen=True, slots=True)
class BatchLen:
    """How the rows divide: prefills first, decodes after (Punica, section 6)."""

    #: Row where each prefill starts.
    prefill_starts: tuple[int, ...]
    num_prefill_rows: int
    num_decodes: int

    @property
    def num_rows(self) -> int:
        return self.num_prefill_rows + self.num_decodes


@dataclass(frozen=True, slots=True)
class Segments:
    """Runs of rows that share an adapter; the last prefill and the decodes of its adapter form one."""

    #: Row where each segment starts, and the number of rows at the end.
    indptr: tuple[int, ...]
    #: Digest of each segment's adapter; None is the base model.
    digests: tuple[str | None, ...]

    def rows_among(self, rows: npt.ArrayLike) -> tuple[int, ...]:
        """``indptr`` among some of the rows, which must not descend; segments without any of them are empty."""
        places: list[int] = np.searchsorted(np.asarray(rows), self.indptr).tolist()
        return tuple(places)


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one model invocation."""

    batch_len: BatchLen
    segments: Segments
    #: int64 [rows]
    token_ids: Tensor
    #: int64 [rows]: index of each token in its request.
    positions: Tensor
    #: int64 [rows]: the same, from each request's ``Sequence.rotary_start`` on.
    rotary_positions: Tensor
    #: int64 [sampled]: the rows whose logits are wanted, in the order of StepPlan.sampled.
    sampled_rows: Tensor


def build_rows(plan: StepPlan, device: torch.device) -> StepRows:
    """Lays a plan out in rows."""
    token_ids: list[int] = []
    positions: list[int] = []
    starts: list[int] = []
    rotary_starts: list[int] = []
    sampled: list[int] = []
    for chunk in plan.prefills:
        starts.append(len(token_ids))
        token_ids += chunk.sequence.token_ids[chunk.start : chunk.end]
        positions += range(chunk.start, chunk.end)
        rotary_starts += [chunk.sequence.rotary_start] * chunk.num_tokens
        if chunk.is_last:
            sampled.append(len(token_ids) - 1)
    num_prefill = len(token_ids)
    token_ids += [sequence.token_ids[-1] for sequence in plan.decodes]
    positions += [sequence.num_cached for sequence in plan.decodes]
    rotary_starts += [sequence.rotary_start for sequence in plan.decodes]
    known = torch.tensor(positions, dtype=torch.int64, device=device)
    return StepRows(
        batch_len=BatchLen(tuple(starts), num_prefill, len(plan.decodes)),
        segments=build_segments(plan),
        token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
        positions=known,
        rotary_positions=known + torch.tensor(rotary_starts, dtype=torch.int64, device=device),
        sampled_rows=torch.tensor([*sampled, *range(num_prefill, len(token_ids))], dtype=torch.int64, device=device),
    )


def build_segments(plan: StepPlan, num_prefill_rows: int | None = None) -> Segments:
    """Merges neighbouring rows of one adapter. ``num_prefill_rows``: the rows of prefills padded in front."""
    runs: list[tuple[str | None, int]] = []
    if plan.prefills and num_prefill_rows is not None and num_prefill_rows > plan.num_prefill_tokens:
        runs.append((None, num_prefill_rows - plan.num_prefill_tokens))
    runs.extend(run for chunk in plan.prefills for run in _runs(chunk) if run[1])
    runs.extend((each.digest if each.num_cached >= each.invoked_at else None, 1) for each in plan.decodes)
    indptr: list[int] = [0]
    digests: list[str | None] = []
    for digest, num_rows in runs:
        if digests and digests[-1] == digest:
            indptr[-1] += num_rows
        else:
            digests.append(digest)
            indptr.append(indptr[-1] + num_rows)
    return Segments(tuple(indptr), tuple(digests))


def _runs(chunk: PrefillChunk) -> tuple[tuple[str | None, int], ...]:
    """The adapter and the number of rows before the request's adapter is invoked, and from there on."""
    num_base = min(max(0, chunk.sequence.invoked_at - chunk.start), chunk.num_tokens)
    return (None, num_base), (chunk.digest, chunk.num_tokens - num_base)
