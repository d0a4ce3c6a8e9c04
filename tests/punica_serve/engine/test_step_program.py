"""A GPU's steps on a CPU: padded to shapes, in words, one ahead of the host, but neither streams nor graphs.

What an engine says must not depend on it.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_serve.engine import device_runner
from punica_serve.engine.cuda_attention import attention_parts, make_attentions
from punica_serve.engine.cuda_runner import draw_rows
from punica_serve.engine.engine import Engine
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.lora_batch import PagesOf
from punica_serve.engine.lora_pool import LoraPool
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.sampler import PendingDraws, Sampler
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_inputs import StepInputs
from punica_serve.engine.step_program import StepProgram
from punica_serve.engine.step_shape import StepShape, StepShapes
from punica_serve.engine.step_words import StepWords
from punica_serve.models.llama import Llama
from punica_serve.protocol import AdapterRef, LoraGroup, Request, SamplingParams

SHAPES = StepShapes(max_batch_size=4, prefill_budget_tokens=16)
SETTINGS = {"max_batch_size": 4, "prefill_budget_tokens": 16}


class _TableLora:
    """CudaLora in plain torch: what the tables say, tile by tile."""

    def __init__(self, pool: LoraPool, tables: Mapping[LoraGroup, LoraTable]) -> None:
        self._pool = pool
        self._tables = tables

    def project(self, layer: int, group: LoraGroup, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        y = linear(x, weight)
        if group not in self._tables:
            return y, None
        table, pool = self._tables[group], self._pool.groups[group]
        delta = torch.zeros_like(y)
        tiles = table.words[: table.shape.items_start].view(-1, table.shape.tile_words)
        for first_row, num_rows, _, part, _, *pages in tiles.tolist():
            if part == 0:  # others are columns of the same
                rows = slice(first_row, first_row + num_rows)
                for page in (page for page in pages if page >= 0):
                    for number, (left, right) in enumerate(pairwise(pool.out_offsets)):
                        v = x[rows] @ pool.a[page, layer, number].T
                        delta[rows, left:right] += v @ pool.b[page, layer, :, left:right]
        return y, delta


class _PaddedRunner:
    """CudaRunner without a GPU."""

    runs_ahead = True
    newest_end: torch.cuda.Event | None = None
    shapes_run: set[tuple[StepShape, bool]]

    def __init__(self, model: Llama, cache: KvCache, lora_pool: LoraPool, sampler: Sampler, pages_of: PagesOf) -> None:
        self._sampler = sampler
        self._pages_of = pages_of
        self._draw_rows: dict[Sequence, int] = {}
        self._programs: dict[tuple[StepShape, bool], StepProgram] = {}
        for shape in SHAPES.all:
            table = LoraTableShape(shape.num_rows, shape.num_decode_rows + 2, 16)
            parts = StepInputs.parts(shape, table) | attention_parts(cache, model.config, shape)
            words = StepWords(parts, torch.device("cpu"))
            attention = make_attentions(cache, model.config, {shape: words})[shape]
            inputs = StepInputs(shape, table, words)
            for with_lora in (True, False):
                lora = _TableLora(lora_pool, inputs.tables if with_lora else {})
                self._programs[shape, with_lora] = StepProgram(
                    model, words, inputs, attention, lora, sampler.draws, with_lora=with_lora
                )
        type(self).shapes_run = set()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> "_Launched":
        shape, with_lora = SHAPES.fit(plan), plan.num_adapters > 0
        self.shapes_run.add((shape, with_lora))
        program = self._programs[shape, with_lora]
        program.stage(plan, self._draw_rows, self._pages_of)
        rows = draw_rows(plan, shape)
        pending = self._sampler.launch(program.run(), plan.sampled, [rows[sequence] for sequence in plan.sampled])
        self._draw_rows = rows
        return _Launched(pending)


class _Launched:
    def __init__(self, pending: PendingDraws) -> None:
        self.draws = pending.read


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


@pytest.mark.parametrize("adapters", ["none", "some", "one"])
def test_padded_steps_say_what_plain_ones_say(
    adapters: str,
    make_engine: Callable[..., Engine],
    make_adapter: Callable[..., AdapterRef],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = make_adapter(rank=8, seed=1), make_adapter(rank=20, seed=2)
    mixes: dict[str, list[AdapterRef | None]] = {
        "none": [None] * 6,
        "some": [one, None, other, one, other, None],
        "one": [one] * 6,
    }
    refs = mixes[adapters]
    expected = _answers(make_engine(**SETTINGS), _requests(refs))
    monkeypatch.setattr(device_runner, "CpuRunner", _PaddedRunner)
    assert _answers(make_engine(**SETTINGS), _requests(refs)) == expected
    kinds = {(shape.num_prefill_rows > 0, with_lora) for shape, with_lora in _PaddedRunner.shapes_run}
    assert kinds >= {(True, adapters != "none"), (False, adapters != "none")}
