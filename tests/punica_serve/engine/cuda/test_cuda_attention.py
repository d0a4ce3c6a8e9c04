"""A GPU's paged attention against plain attention in float64, in a pool full of an earlier owner's NaN.

Without a GPU the same tables go through the torch implementation of Triton's kernel.
"""

import pytest
import torch

from attention_desk import LAYERS, AttentionDesk, StagedAttention, attention_model
from device_waits import waits_are_errors
from punica_kernels.tile_fields import WorkTileField
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.cuda_attention import (
    DEFAULT_OPTIONS,
    AttentionOptions,
    attention_sections,
    attention_shapes,
    make_attentions,
)
from punica_serve.engine.cuda.step_input_buffer import StepInputBuffer
from punica_serve.protocol import Request, SamplingParams

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
#: Device, dtype and head size: those of common models, then float32 and a size that is no power of two.
GPU_KINDS = [
    pytest.param(("cuda", dtype, head_dim), marks=needs_gpu, id=f"{dtype}-{head_dim}".removeprefix("torch."))
    for dtype, head_dim in [
        (torch.bfloat16, 128),
        (torch.bfloat16, 64),
        (torch.float16, 128),
        (torch.float32, 64),
        (torch.bfloat16, 80),
    ]
]
KINDS = [pytest.param(("cpu", torch.float32, 16), id="cpu"), *GPU_KINDS]

Kind = tuple[str, torch.dtype, int]

SHARING = AttentionOptions(shares_prefixes=True)


def _random_lengths(count: int) -> list[int]:
    lengths: list[int] = torch.randint(1, 1001, (count,)).tolist()
    return lengths


def _plan(attention: StagedAttention, step: StepPlan) -> None:
    """Plans, and fails where torch would make the host wait for the device."""
    if not attention.slot_mapping.is_cuda:
        attention.plan(step)
        return
    with waits_are_errors():
        attention.plan(step)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


#: Of rows: the bucket, the prefill's chunk and the number of decodes.
SMALL_STEPS = [
    (BatchBucket(0, 1), None, 1),
    (BatchBucket(0, 8), None, 5),
    (BatchBucket(0, 32), None, 32),
    (BatchBucket(48, 0), (0, 37), 0),
    (BatchBucket(128, 7), (600, 700), 3),
    (BatchBucket(16, 31), (999, 1000), 31),
]
LARGE_STEPS = [
    (BatchBucket(512, 0), (0, 512), 0),
    (BatchBucket(768, 0), (30, 730), 0),
    (BatchBucket(1024, 7), (200, 1000), 3),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("kv_heads", "bucket", "chunk", "num_decodes"),
    [
        *((kv_heads, *step) for kv_heads in (8, 2, 1) for step in SMALL_STEPS),
        *((2, *step) for step in LARGE_STEPS),
        *(pytest.param(kv_heads, *step, marks=pytest.mark.slow) for kv_heads in (8, 1) for step in LARGE_STEPS),
    ],
    ids=str,
)
def test_rows_attend_to_their_own_past(
    kind: Kind, kv_heads: int, bucket: BatchBucket, chunk: tuple[int, int] | None, num_decodes: int
) -> None:
    desk = AttentionDesk(kv_heads, *kind)
    step = desk.step(chunk, _random_lengths(num_decodes))
    attention, q = desk.attention(bucket), desk.q(bucket)
    _plan(attention, step)
    for layer in range(LAYERS):
        desk.check(step, bucket, layer, q, attention.run(layer, q))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize(
    ("rows", "chunks"),
    [(192, [(0, 37), (500, 570)]), (192, [(0, 37), (500, 570), (3, 4)]), (1024, [(100, 700), (500, 570), (3, 4)])],
)
def test_prefills_of_one_step_attend_to_their_own_past(
    kind: Kind, kv_heads: int, rows: int, chunks: list[tuple[int, int]]
) -> None:
    desk, bucket = AttentionDesk(kv_heads, *kind), BatchBucket(rows, 7, max_prefills=3)
    step = desk.step_of(chunks, _random_lengths(5))
    attention, q = desk.attention(bucket), desk.q(bucket)
    _plan(attention, step)
    for layer in range(LAYERS):
        desk.check(step, bucket, layer, q, attention.run(layer, q))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 16, 100, 333])
@pytest.mark.parametrize(("rows", "start"), [(192, 600), (768, 100)])
def test_nothing_is_read_of_pages_that_were_given_back(kind: Kind, window: int, rows: int, start: int) -> None:
    desk, bucket = AttentionDesk(2, *kind, window), BatchBucket(rows, 7, max_prefills=2)
    attention = desk.attention(bucket)
    step, q = desk.step_of([(start, 700), (37, 101)], [1, 17, *_random_lengths(5)]), desk.q(bucket)
    _plan(attention, step)
    for layer in range(LAYERS):
        desk.check(step, bucket, layer, q, attention.run(layer, q))


def _sharing_decodes(desk: AttentionDesk) -> StepPlan:
    """Two groups and two requests alone, none beside those it belongs to."""
    one, other = desk.sharing([600, 481, 700, 1001], 30), desk.sharing([200, 150, 163], 9)
    decodes = (one[0], other[0], *desk.sharing([17], 0), one[1], one[2], other[1], other[2], one[3])
    return StepPlan((), decodes, shares_pages=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_decodes_that_share_pages_read_them_once_and_see_the_same(kind: Kind, kv_heads: int) -> None:
    desk, bucket = AttentionDesk(kv_heads, *kind), BatchBucket(0, 16)
    step, q = _sharing_decodes(desk), desk.q(bucket)
    for options in (SHARING, DEFAULT_OPTIONS):
        attention = desk.attention(bucket, options)
        _plan(attention, step)
        for layer in range(LAYERS):
            desk.check(step, bucket, layer, q, attention.run(layer, q))


def test_shared_pages_are_in_one_tile_for_all_their_rows() -> None:
    desk, bucket = AttentionDesk(8, "cpu", torch.float32, 16), BatchBucket(0, 16)
    attention = desk.attention(bucket, SHARING)
    attention.plan(_sharing_decodes(desk))
    (shape, _) = attention_shapes(desk.cache, desk.model, bucket, options=SHARING)
    assert shape is not None
    tiles = attention.buffer.array("decode_tiles")[: shape.max_tiles * shape.tile_words].reshape(-1, shape.tile_words)
    shared = tiles[tiles[:, WorkTileField.NUM_ROWS] > 1]
    assert shared[shared[:, WorkTileField.NUM_ROWS] == 4][:, WorkTileField.NUM_TOKENS].sum() == 30 * 16
    assert shared[shared[:, WorkTileField.NUM_ROWS] == 3][:, WorkTileField.NUM_TOKENS].sum() == 9 * 16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [[604, 604, 604], [604, 610, 612]], ids=str)
def test_a_group_whose_pages_were_given_back_sees_what_its_windows_hold(kind: Kind, lengths: list[int]) -> None:
    desk, bucket = AttentionDesk(2, *kind, 300), BatchBucket(0, 4)
    attention = desk.attention(bucket, SHARING)
    step, q = StepPlan((), tuple(desk.sharing(lengths, 30)), shares_pages=True), desk.q(bucket)
    _plan(attention, step)
    desk.check(step, bucket, 0, q, attention.run(0, q))


@pytest.mark.parametrize("kind", GPU_KINDS)
@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("options", [DEFAULT_OPTIONS, SHARING], ids=["default", "sharing"])
@pytest.mark.parametrize("rows", [64, 640])
def test_a_graph_captured_on_padding_replays_any_step_that_fits(
    kind: Kind, kv_heads: int, options: AttentionOptions, rows: int
) -> None:
    desk, bucket = AttentionDesk(kv_heads, *kind), BatchBucket(rows, 8)
    attention, q = desk.attention(bucket, options), desk.q(bucket)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attention.plan(StepPlan((), ()))
        attention.run(1, q)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = attention.run(1, q)
    sizes = [((0, rows), 8), ((0, 1), 0), ((300, 340), 3), (None, 5), ((930, 990), 7)]
    steps = [desk.step(chunk, _random_lengths(num_decodes)) for chunk, num_decodes in sizes]
    for step in [_sharing_decodes(desk), *steps, _sharing_decodes(desk)]:
        q.copy_(desk.q(bucket))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            _plan(attention, step)
            graph.replay()
        torch.cuda.synchronize()
        desk.check(step, bucket, 1, q, out)
        replayed = out.clone()
        attention.run(1, q)
        decodes = slice(rows, rows + len(step.decodes))
        assert torch.equal(out[decodes], replayed[decodes])


@pytest.mark.parametrize("kind", KINDS)
def test_slots_are_where_the_new_tokens_go(kind: Kind) -> None:
    desk, bucket = AttentionDesk(8, *kind), BatchBucket(4, 3)
    attention = desk.attention(bucket)
    step = desk.step((15, 18), [17])
    _plan(attention, step)
    first, second = step.prefills[0].sequence.pages[:2]
    expected = [-1, first * 16 + 15, second * 16, second * 16 + 1, step.decodes[0].pages[1] * 16, -1, -1]
    assert attention.slot_mapping.tolist() == expected


def test_a_cache_of_many_pages_makes_words_for_the_fullest_step_and_no_more() -> None:
    model, bucket = attention_model(2, 16), BatchBucket(16, 2)
    longest = model.max_position_embeddings
    cache = KvCache(model, num_pages=20_000, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    sections = attention_sections(cache, model, bucket)
    assert 3 * longest <= sections["kv_pages"] <= 3 * longest + bucket.num_rows
    buffer = StepInputBuffer(sections, torch.device("cpu"))
    sequences = [Sequence.of(Request("r", 0, (1,) * longest, SamplingParams()), longest) for _ in range(3)]
    for number, sequence in enumerate(sequences):
        sequence.num_cached, sequence.pages = longest - 1, list(range(number * longest, (number + 1) * longest))
    prefill, *decodes = sequences
    step = StepPlan((PrefillChunk(prefill, longest - 16, longest, is_last=True),), tuple(decodes))
    make_attentions(cache, model, {bucket: buffer})[bucket].plan(step)
    pages = buffer.array("kv_pages")[: 3 * longest].tolist()
    assert sorted(pages) == list(range(3 * longest))


def test_a_step_may_name_more_pages_than_the_cache_has_if_requests_share_them() -> None:
    """Each request names all its pages, so a table of the pool's size would overflow."""
    model, bucket, num_pages = attention_model(2, 16), BatchBucket(0, 4), 8
    cpu = torch.device("cpu")
    cache = KvCache(model, num_pages=num_pages, page_size=4, dtype=torch.float32, device=cpu, is_sharing=True)
    pages = cache.allocate(num_pages - 4)
    for page in pages:
        cache.pages.name(page, bytes([page]))
    sequences: list[Sequence] = []
    while found := cache.pages.find([bytes([page]) for page in pages])[: 4 * (len(sequences) < 4)]:
        cache.pages.share(found)
        length = 4 * len(found) + 1
        sequences.append(Sequence.of(Request("r", 0, (1,) * length, SamplingParams()), 64))
        sequences[-1].num_cached, sequences[-1].pages = length - 1, [*found, *cache.allocate(1)]
    buffer = StepInputBuffer(attention_sections(cache, model, bucket), cpu)
    make_attentions(cache, model, {bucket: buffer})[bucket].plan(StepPlan((), tuple(sequences)))
    assert len(sequences) == 4 and num_pages < 4 * 5
    assert buffer.array("kv_pages")[: 4 * 5].tolist() == [page for sequence in sequences for page in sequence.pages]
    assert len(buffer.array("kv_pages")) == cache.max_pages_named == num_pages * 5
