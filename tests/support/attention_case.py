"""Cases of paged attention on a cache that is NaN wherever no request has written, and the results in float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from punica_kernels.attention_tiles import AttentionShape, AttentionWorkspace
from punica_kernels.shared_prefixes import NO_GROUPS, PrefixGroups

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Relative Frobenius error: half precision rounds the probabilities and the result. The interpreter multiplies
#: bfloat16 wrongly.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 8e-3}
#: (context, query rows) of each request: decodes, whole prompts, chunks of prompts, and a request of no context.
REQUESTS = [(1, 1), (7, 7), (0, 2), (13, 5), (40, 1), (33, 20), (8, 0)]
SCALE = 0.3


@dataclass
class Case:
    """One call on a cache that is NaN wherever no request has written."""

    requests: list[tuple[int, int]]
    q: Tensor
    keys: Tensor
    values: Tensor
    pages: Tensor
    page_starts: Tensor
    shape: AttentionShape
    workspace: AttentionWorkspace
    soft_cap: float | None = None
    groups: PrefixGroups = NO_GROUPS

    def run(self, attend: Callable[..., None]) -> Tensor:
        """A poisoned `out` after the call."""
        out = torch.full_like(self.q, torch.nan)
        tables = (self.pages, self.tiles(), self.shape, self.workspace)
        attend(out, self.q, self.keys, self.values, *tables, SCALE, self.soft_cap)
        return out

    def tiles(self) -> Tensor:
        """The table of the requests, where the kernel reads it."""
        contexts, rows = zip(*self.requests, strict=True)
        words = np.zeros(self.shape.num_words, dtype=np.int32)
        page_starts, page_size = self.page_starts.cpu().numpy(), self.keys.shape[1]
        self.shape.fill(words, contexts, [0, *accumulate(rows)], page_starts, page_size, self.groups)
        return torch.from_numpy(words).to(self.q.device)

    def divide(self, num_programs: int) -> None:
        """Makes splits of a few tokens."""
        self.shape = replace(self.shape, num_programs=num_programs, min_split_tokens=3)
        self.workspace = AttentionWorkspace.of([self.shape], self.q.shape[2], self.q.device)

    def share(self, groups: list[tuple[list[int], int]]) -> None:
        """Requests of each group begin with so many pages of the first one, and lose their own."""
        for (first, *others), num_pages in groups:
            prefix = self.pages[int(self.page_starts[first]) :][:num_pages].clone()
            for request in others:
                own = self.pages[int(self.page_starts[request]) :][:num_pages]
                self.keys[own] = self.values[own] = torch.nan
                own.copy_(prefix)
        self.shape = replace(self.shape, shares_prefixes=True)
        self.workspace = AttentionWorkspace.of([self.shape], self.q.shape[2], self.q.device)
        self.group(groups)

    def group(self, groups: list[tuple[list[int], int]]) -> None:
        """Reads so many pages of each group's requests once, which they share already."""
        requests, num_pages = zip(*groups, strict=True)
        starts = np.array([0, *accumulate(map(len, requests))])
        self.groups = PrefixGroups(np.concatenate(requests), starts, np.array(num_pages))

    def slide(self, window: int) -> None:
        """Gives all layers a window, and loses the pages that no row sees any more."""
        self.shape = replace(self.shape, window=window)
        for request, (context, rows) in enumerate(self.requests):
            num_unseen = max(0, context - rows - window + 1) // self.keys.shape[1]
            first = int(self.page_starts[request])
            self.keys[self.pages[first : first + num_unseen]] = torch.nan
            self.values[self.pages[first : first + num_unseen]] = torch.nan

    def expected(self) -> Tensor:
        """Attention in float64, request by request; NaN in rows without context."""
        out, start = torch.full_like(self.q, torch.nan, dtype=torch.float64), 0
        for request, (context, rows) in enumerate(self.requests):
            if context and rows:
                first = int(self.page_starts[request])
                pages = self.pages[first : first - (-context // self.keys.shape[1])]
                k, v = (
                    pool[pages].flatten(0, 1)[:context].double().transpose(0, 1) for pool in (self.keys, self.values)
                )
                q = self.q[start : start + rows].double().transpose(0, 1)
                out[start : start + rows] = self._attend(q, k, v).transpose(0, 1)
            start += rows
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [heads, rows, head_dim], k and v [kv_heads, context, head_dim]"""
        rows, context = q.shape[1], k.shape[1]
        mask = torch.ones(rows, context, dtype=torch.bool, device=q.device).tril(context - rows)
        if self.shape.window is not None:
            mask = mask.triu(context - rows - self.shape.window + 1)
        k, v = (part.nan_to_num().repeat_interleave(len(q) // len(k), dim=0) for part in (k, v))
        scores = q @ k.transpose(1, 2) * SCALE
        if self.soft_cap is not None:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def make_case(
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    requests: list[tuple[int, int]] = REQUESTS,
    device: torch.device = DEVICE,
) -> Case:
    """Pages scattered over one layer of a pool of two; each request's list goes on with a page that is not there."""
    needed = [-(-context // page_size) for context, _ in requests]
    num_pages = sum(needed) + 3
    pool = torch.full((num_pages, 2, 2, page_size, kv_heads, head_dim), torch.nan, dtype=dtype, device=device)
    keys, values = pool[:, 1, 0], pool[:, 1, 1]
    free = torch.randperm(num_pages).tolist()
    starts = torch.tensor([0, *needed]).cumsum(0).to(torch.int32) + torch.arange(len(needed) + 1, dtype=torch.int32)
    pages = torch.full((int(starts[-1]),), 2**30, dtype=torch.int32)
    for request, (context, _) in enumerate(requests):
        for ordinal in range(needed[request]):
            pages[starts[request] + ordinal] = page = free.pop()
            filled = min(page_size, context - ordinal * page_size)
            keys[page, :filled].copy_(torch.randn(filled, kv_heads, head_dim))
            values[page, :filled].copy_(torch.randn(filled, kv_heads, head_dim))
    q = torch.randn(sum(rows for _, rows in requests), heads, head_dim).to(device, dtype)
    shape = AttentionShape.of(
        len(requests),
        max(rows for _, rows in requests),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        device=device,
    )
    workspace = AttentionWorkspace.of([shape], head_dim, device)
    return Case(requests, q, keys, values, pages.to(device), starts.to(device), shape, workspace)


def check(case: Case, attend: Callable[..., None]) -> None:
    actual, expected = case.run(attend).double(), case.expected()
    assert torch.equal(actual.isnan(), expected.isnan())
    error = (actual - expected).nan_to_num().norm() / expected.nan_to_num().norm()
    assert float(error) < GPU_TOLERANCES[case.q.dtype]
