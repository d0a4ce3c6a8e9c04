"""FlashInfer's prefill rows against plain attention in float64, in a pool full of an earlier owner's NaN."""

import pytest
import torch

from attention_desk import AttentionDesk
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cuda.attention_backend import fa3_modules
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.cuda_attention import AttentionOptions
from punica_serve.engine.cuda.flashinfer_modules import compile_module, is_compiled, why_not

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

BUCKET = BatchBucket(512, 31)
#: The chunks of a step's prefills, and its decodes, by the most prefills of its bucket.
STEPS: dict[int, list[tuple[list[tuple[int, int]], int]]] = {
    1: [([(0, 512)], 31), ([(0, 1)], 0), ([(300, 340)], 3), ([], 5), ([(500, 990)], 7)],
    3: [([(0, 200), (0, 300), (700, 712)], 31), ([(0, 512)], 3), ([], 5), ([(999, 1000), (0, 1)], 0)],
}


@pytest.fixture(params=[8, 2])
def desk(request: pytest.FixtureRequest) -> AttentionDesk:
    torch.manual_seed(0)
    made = AttentionDesk(request.param, "cuda", torch.bfloat16, 128)
    _compile(made.model)
    return made


def _compile(model: ModelConfig) -> None:
    for module in fa3_modules(model, torch.bfloat16):
        if reason := why_not(module, torch.device("cuda")):
            pytest.skip(reason)
        if not is_compiled(module):
            compile_module(module)


@pytest.mark.parametrize("chunk", [(0, 512), (0, 300), (600, 700), (999, 1000), (0, 1)], ids=str)
def test_rows_attend_to_their_own_past(desk: AttentionDesk, chunk: tuple[int, int]) -> None:
    step = desk.step(chunk, [100, 1, 900])
    attention, q = desk.attention(BUCKET, AttentionOptions(flashinfer_from=1)), desk.q(BUCKET)
    attention.plan(step)
    for layer in range(2):
        desk.check(step, BUCKET, layer, q, attention.run(layer, q))


@pytest.mark.parametrize("num_prefills", [1, 2, 3])
def test_prefills_of_one_step_attend_to_their_own_past(desk: AttentionDesk, num_prefills: int) -> None:
    bucket = BatchBucket(512, 7, max_prefills=3)
    step = desk.step_of([(0, 37), (500, 570), (3, 4)][:num_prefills], [100, 1, 900])
    attention, q = desk.attention(bucket, AttentionOptions(flashinfer_from=1)), desk.q(bucket)
    attention.plan(step)
    for layer in range(2):
        desk.check(step, bucket, layer, q, attention.run(layer, q))


def test_nothing_is_read_of_pages_that_were_given_back() -> None:
    desk = AttentionDesk(2, "cuda", torch.bfloat16, 128, window=100)
    _compile(desk.model)
    step = desk.step((600, 700), [100, 1, 900])
    attention, q = desk.attention(BUCKET, AttentionOptions(flashinfer_from=1)), desk.q(BUCKET)
    attention.plan(step)
    for layer in range(2):
        desk.check(step, BUCKET, layer, q, attention.run(layer, q))


@pytest.mark.parametrize("max_prefills", [1, 3])
def test_a_graph_captured_on_padding_replays_any_step_that_fits(desk: AttentionDesk, max_prefills: int) -> None:
    bucket = BatchBucket(512, 31, max_prefills)
    attention, q = desk.attention(bucket, AttentionOptions(flashinfer_from=1)), desk.q(bucket)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attention.plan(StepPlan((), ()))
        attention.run(1, q)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = attention.run(1, q)
    for chunks, num_decodes in STEPS[max_prefills]:
        step = desk.step_of(chunks, [10 + 30 * number for number in range(num_decodes)])
        q.copy_(desk.q(bucket))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            attention.plan(step)
            graph.replay()
        torch.cuda.synchronize()
        desk.check(step, bucket, 1, q, out)
