"""A GPU's steps on a CPU: padded to buckets, from an input buffer, with overlap, but without streams and graphs.

The answers of an engine must not depend on them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from punica_kernels.lora_table import TILE_HEADER_WORDS, ExpandTileField, LoraTable
from punica_kernels.tile_fields import WorkTileField
from punica_serve.base_model.lora_layout import LoraKind
from punica_serve.engine import device_runner
from punica_serve.engine.adapters.layer_arrival import CpuArrival
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket, BatchBuckets
from punica_serve.engine.cuda.cuda_attention import (
    DEFAULT_OPTIONS,
    AttentionOptions,
    attention_sections,
    attention_shapes,
    make_attentions,
)
from punica_serve.engine.cuda.cuda_runner import logit_rows, table_shapes
from punica_serve.engine.cuda.graph_runner import GraphRunner
from punica_serve.engine.cuda.step_input_buffer import Int32s, Section, StepInputBuffer
from punica_serve.engine.cuda.step_inputs import StepInputs
from punica_serve.engine.engine import Engine
from punica_serve.engine.sampler import PendingTokens, Sampler
from punica_serve.engine.step_runner import arrival_for
from punica_serve.engine.torch_lora import ArrivalOf, PagesOf
from punica_serve.models.collectives import Collectives
from punica_serve.models.linear import Projected
from punica_serve.models.model import Model
from punica_serve.protocol import AdapterRef, LoraGroup, Request, SamplingParams

SETTINGS = {"max_batch_size": 4, "prefill_budget_tokens": 16}
#: Settings that let in what the usual ones refuse.
LIMITS: dict[str, dict[str, Any]] = {
    "one": {"max_lora_rank": 8},
    "high": {"max_lora_rank": 200},
    "vocabulary": {"max_lora_rank": 256, "lora_vocabulary": True},
}

_DECODE_TILES: tuple[Section, ...] = ("decode_tiles", "second_decode_tiles")


class _TableLora:
    """CudaLora in plain torch: what the tables say, tile by tile."""

    def __init__(self, pool: LoraPool, tables: Mapping[LoraGroup, LoraTable]) -> None:
        self._pool = pool
        self._tables = tables
        #: The copy that the step's prefill has joined.
        self.arrival: CpuArrival | None = None

    def apply(self, layer: int, group: LoraGroup, x: Tensor, base: Callable[[Tensor], Tensor]) -> Projected:
        y = base(x)
        if group not in self._tables:
            return Projected(y, None)
        if self.arrival is not None:
            self.arrival.wait(layer)
        table, pool = self._tables[group], self._pool.groups[group]
        delta = torch.zeros_like(y)
        for rows, page in _pages(table):
            for number, (left, right) in enumerate(pairwise(pool.out_offsets)):
                v = x[rows] @ pool.a[page, layer, number].T
                delta[rows, left:right] += v @ pool.b[page, layer, :, left:right]
        return Projected(y, delta)

    def add_to_embedding(self, token_ids: Tensor, embedded: Tensor) -> None:
        if (table := self._tables.get("embed")) is not None:
            pool = self._pool.groups["embed"]
            for rows, page in _pages(table):
                embedded[rows] += pool.a[page, 0, 0][:, token_ids[rows].long()].T @ pool.b[page, 0]

    def add_to_logits(self, hidden: Tensor, logits: Tensor) -> None:
        if (table := self._tables.get("head")) is not None:
            pool = self._pool.groups["head"]
            for rows, page in _pages(table):
                logits[rows] += hidden[rows] @ pool.a[page, 0, 0].T @ pool.b[page, 0]


def _pages(table: LoraTable) -> Iterator[tuple[slice, int]]:
    """The rows of each tile with each of its pages."""
    tiles = table.words[: table.shape.rank_blocks_start].view(-1, table.shape.tile_words)
    for tile in tiles.tolist():
        if tile[ExpandTileField.FIRST_COLUMN_BLOCK] == 0:  # others are columns of the same
            first_row, pages = tile[ExpandTileField.FIRST_ROW], tile[TILE_HEADER_WORDS:]
            rows = slice(first_row, first_row + tile[ExpandTileField.NUM_ROWS])
            yield from ((rows, page) for page in pages if page >= 0)


class _PaddedRunner:
    """CudaRunner without a GPU."""

    buckets: BatchBuckets
    options = DEFAULT_OPTIONS

    overlap_scheduling = True
    newest_end: torch.cuda.Event | None = None
    buckets_run: set[tuple[BatchBucket, LoraKind]]
    #: Rows of the fullest tile of decodes in any step, for each distinct window of the model's layers.
    most_rows: dict[Section, int]

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
        self._sampler = sampler
        self._pages_of = pages_of
        self._arrival_of = arrival_of
        self._loras: dict[tuple[BatchBucket, LoraKind], _TableLora] = {}
        self._logit_rows: dict[Sequence, int] = {}
        self._runners: dict[tuple[BatchBucket, LoraKind], GraphRunner] = {}
        self._tiles: dict[BatchBucket, dict[Section, Int32s]] = {}
        for bucket in self.buckets.all:
            shapes = table_shapes(bucket, lora_pool.limits)
            sections = attention_sections(cache, model.config, bucket, self.options)
            buffer = StepInputBuffer(StepInputs.sections(bucket, shapes) | sections, torch.device("cpu"))
            attention = make_attentions(cache, model.config, {bucket: buffer}, self.options)[bucket]
            decodes, _ = attention_shapes(cache, model.config, bucket, options=self.options)
            assert decodes is not None
            self._tiles[bucket] = {
                section: buffer.array(section)[: decodes.max_tiles * decodes.tile_words].reshape(-1, decodes.tile_words)
                for section in _DECODE_TILES
                if section in sections
            }
            inputs = StepInputs(bucket, shapes, buffer)
            for kind in lora_pool.limits.kinds:
                lora = self._loras[bucket, kind] = _TableLora(lora_pool, inputs.tables(kind))
                self._runners[bucket, kind] = GraphRunner(
                    model, buffer, inputs, attention, lora, sampler.sampled_ids, kind=kind
                )
        type(self).buckets_run, type(self).most_rows = set(), {}

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> "_Launched":
        bucket, kind = self.buckets.fit(plan), plan.lora_kind
        self.buckets_run.add((bucket, kind))
        runner = self._runners[bucket, kind]
        arrival = arrival_for(plan, self._arrival_of)
        self._loras[bucket, kind].arrival = arrival if isinstance(arrival, CpuArrival) else None
        runner.stage(plan, self._logit_rows, self._pages_of)
        self._count_rows(bucket)
        rows = logit_rows(plan, bucket)
        pending = self._sampler.launch(runner.run(), plan.sampled, [rows[sequence] for sequence in plan.sampled])
        self._logit_rows = rows
        return _Launched(pending)

    def _count_rows(self, bucket: BatchBucket) -> None:
        for section, tiles in self._tiles[bucket].items():
            num_rows = int(tiles[:, WorkTileField.NUM_ROWS].max())
            self.most_rows[section] = max(self.most_rows.get(section, 0), num_rows)


class _Launched:
    has_ended = True
    is_late = True
    phases_ns = (0, 0, 0)

    def __init__(self, pending: PendingTokens) -> None:
        self.sampled_tokens = pending.read


def _requests(refs: Iterable[AdapterRef | None]) -> list[Request]:
    """Prompts in one chunk and in several, greedy and drawn, of the base and of adapters."""
    lengths = [(5, 9), (40, 4), (17, 6), (2, 12), (16, 5), (23, 7)]
    requests = []
    for number, ((num_prompt, max_tokens), ref) in enumerate(zip(lengths, refs, strict=True)):
        prompt = tuple((number * 11 + token * 5) % 60 for token in range(num_prompt))
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number, temperature=float(number % 2))
        requests.append(Request(f"{number}", number, prompt, params, ref))
    return requests


def _answers(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    for request in requests:
        engine.add(request)
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while engine.num_requests:
        output = engine.step()
        assert not output.failures
        for token in output.tokens:
            answers[token.request_id].append(token.token_id)
        if not output.has_run:
            engine.wait(1.0)
    return answers


@pytest.mark.parametrize(
    ("adapters", "max_prefills"),
    [("none", 3), ("some", 1), ("some", 3), ("one", 1), ("high", 3), ("vocabulary", 1), ("activated", 3)],
)
def test_padded_steps_say_what_plain_ones_say(
    adapters: str,
    max_prefills: int,
    make_engine: Callable[..., Engine],
    make_adapter: Callable[..., AdapterRef],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = make_adapter(rank=8, seed=1), make_adapter(rank=20, seed=2)
    modules = ("embed_tokens", "lm_head", "v_proj")
    vocabulary = make_adapter(rank=9, seed=4, target_modules=modules)
    activated = msgspec.structs.replace(make_adapter(rank=16, seed=5), invocation=(21, 26))
    high = make_adapter(rank=200, seed=3, scale=0.2)
    mixes: dict[str, list[AdapterRef | None]] = {
        "none": [None] * 6,
        "some": [one, None, other, one, other, None],
        "one": [one] * 6,
        "high": [one, high, None, high, one, other],
        "activated": [one, activated, activated, other, activated, None],
        "vocabulary": [one, vocabulary, None, vocabulary, high, vocabulary],
    }
    refs = mixes[adapters]
    limits = LIMITS.get(adapters, {})
    expected = _answers(make_engine(**SETTINGS, **limits), _requests(refs))
    monkeypatch.setattr(device_runner, "CpuRunner", _PaddedRunner)
    _PaddedRunner.buckets = BatchBuckets(**SETTINGS, max_prefills=max_prefills)
    assert _answers(make_engine(**SETTINGS, **limits, max_prefills=max_prefills), _requests(refs)) == expected
    kinds = {(bucket.num_prefill_rows > 0, kind) for bucket, kind in _PaddedRunner.buckets_run}
    kind = {"none": LoraKind.NONE, "high": LoraKind.WIDE, "vocabulary": LoraKind.WIDE}.get(adapters, LoraKind.USUAL)
    assert kinds >= {(True, kind), (False, kind)}


@pytest.mark.parametrize(("num_kv_pages", "sliding_window"), [(400, 100), (50, 400)])
def test_tokens_are_the_same_where_decodes_read_shared_pages_once(
    num_kv_pages: int,
    sliding_window: int,
    make_engine: Callable[..., Engine],
    make_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests join their group and leave it one by one; with few pages they are preempted and come back. Every other
    layer has a window, which hides something or nothing of their contexts, and scores have soft caps.
    """
    model = make_model("gemma2", head_dim=8, sliding_window=sliding_window)
    settings = {**SETTINGS, "max_batch_size": 8, "prefill_budget_tokens": 64}
    prefixes = [tuple((7 * token + group) % 60 for token in range(150)) for group in range(2)]
    requests = [
        Request(
            f"{number}",
            number,
            (*prefixes[number // 4], *range(number)),
            SamplingParams(max_tokens=5 + 3 * number, ignore_eos=True, seed=number, temperature=float(number % 3 == 0)),
        )
        for number in range(8)
    ]
    expected = _answers(make_engine(model, **settings), requests)
    monkeypatch.setattr(device_runner, "CpuRunner", _PaddedRunner)
    monkeypatch.setattr(_PaddedRunner, "options", AttentionOptions(shares_prefixes=True))
    _PaddedRunner.buckets = BatchBuckets(max_batch_size=8, prefill_budget_tokens=64)
    engine = make_engine(model, **settings, prefix_caching=True, num_kv_pages=num_kv_pages)
    for _ in range(2):
        assert _answers(engine, requests) == expected
    assert _PaddedRunner.most_rows == {"decode_tiles": 1 if sliding_window == 100 else 4, "second_decode_tiles": 4}
