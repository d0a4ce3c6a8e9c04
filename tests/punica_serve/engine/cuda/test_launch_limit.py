"""A step whose rows take more programs than a GPU can launch is refused at the start, before any allocation."""

import pytest
import torch

from punica_kernels.gpu.launch import MAX_GRID_Y
from punica_kernels.lora_table import LoraTableShape
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.launch_limit import check_launches
from punica_serve.errors import ConfigError
from tiny_config import tiny_config

#: As on a device of one multiprocessor, of which two prefills are to have equal work, and three decodes.
MOST_SPANS = MAX_GRID_Y - 2


def check(bucket: BatchBucket, heads: int, max_segments: int = 1) -> None:
    model = tiny_config(num_attention_heads=heads, num_key_value_heads=1, head_dim=16, hidden_size=16 * heads)
    cache = KvCache(model, num_pages=1, page_size=16, dtype=torch.bfloat16, device=torch.device("cpu"))
    check_launches(cache, model, {bucket: LoraTableShape(bucket.num_rows, max_segments, 1)})


def test_a_prefill_may_have_as_many_rows_as_its_spans_have_room_for() -> None:
    check(BatchBucket(MOST_SPANS, 0), heads=64)  # a span takes one row of all heads
    check(BatchBucket(2 * MOST_SPANS, 0), heads=32)
    with pytest.raises(ConfigError, match=r"^a step of 65534 prompt tokens takes 65536 programs .* 65535 .*; lower `e"):
        check(BatchBucket(MOST_SPANS + 1, 0), heads=64)
    with pytest.raises(ConfigError, match="prefill_budget_tokens") as caught:
        check(BatchBucket(2 * MOST_SPANS + 1, 0), heads=32)
    assert caught.value.param == "engine.prefill_budget_tokens"


def test_loras_tiles_are_limited_too() -> None:
    """LoRA's tiles of prompts have 64 rows; one more is for a segment's end, and one for padding."""
    check(BatchBucket(64 * (MAX_GRID_Y - 2), 0), heads=1)
    with pytest.raises(
        ConfigError, match=r"takes 65536 programs .* lower `engine\.prefill_budget_tokens` to about 4194112$"
    ):
        check(BatchBucket(64 * (MAX_GRID_Y - 1), 0), heads=1)
    check(BatchBucket(4194112, 0), heads=1)


def test_so_may_a_batch() -> None:
    check(BatchBucket(0, MOST_SPANS - 1), heads=64, max_segments=MOST_SPANS)
    with pytest.raises(
        ConfigError, match=r"^a step of 65534 requests .* lower `engine\.max_batch_size` to about 65532$"
    ) as caught:
        check(BatchBucket(16, MOST_SPANS + 1), heads=64, max_segments=MOST_SPANS)
    assert caught.value.param == "engine.max_batch_size"
