"""The memory that a worker and its CPU processes share."""

from itertools import pairwise

import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.adapters.random_pages import pack_random, repeated_noise
from punica_serve.engine.cpu_assist.exchange_memory import (
    ExchangeMemory,
    ExchangeShape,
    GroupShape,
    GroupWeights,
    JobWords,
    exchange_num_bytes,
)
from punica_serve.engine.cpu_assist.lora_rows import HostWeights, compute_rows

_SHAPE = ExchangeShape("float32", 3, (GroupShape("qkv", 16, (0, 16, 24, 32)), GroupShape("down", 40, (0, 16))), 5)


def _memory() -> ExchangeMemory:
    return ExchangeMemory(torch.zeros(exchange_num_bytes(_SHAPE), dtype=torch.uint8), _SHAPE)


def test_a_job_is_read_as_it_was_written_and_its_end_stays() -> None:
    memory = _memory()
    memory.end_job(6)
    job = JobWords(7, (GroupWeights(256, 512, 2), GroupWeights()), {0: range(3), 4: range(3, 5)})
    memory.write_job(job)
    read = memory.read_job()
    assert (read.key, read.weights) == (job.key, job.weights)
    assert {number: rows for number, rows in read.rows.items() if rows} == job.rows
    assert memory.ended_key == 6


def test_parts_do_not_overlap() -> None:
    memory = _memory()
    memory.x.fill_(1.0)
    memory.delta.fill_(2.0)
    memory.sent.fill_(3)
    memory.failed.fill_(4)
    memory.process_words.fill_(5)
    assert memory.x.eq(1.0).all() and memory.delta.eq(2.0).all() and memory.sent.eq(3).all()
    assert memory.failed.item() == 4 and memory.read_job().key == 0 and len(memory.sent) == _SHAPE.num_exchanges
    assert memory.rows_of_x(1, 5).shape == (5, 40) and memory.rows_of_delta(0, 5).shape == (5, 32)


def test_rows_are_x_a_b_of_the_pages_in_host_memory(tiny_model: ModelConfig) -> None:
    ranks = {"q_proj": 12, "k_proj": 12, "v_proj": 12}
    num_bytes = packed_num_bytes(ranks, tiny_model, torch.float32)
    host = torch.zeros(num_bytes + 4096, dtype=torch.uint8)
    numbers = repeated_noise(num_bytes // 4, torch.float32, seed=1)
    own = pack_random(host[4096:], numbers, ranks, tiny_model, torch.float32).groups["qkv"]
    groups = tuple(GroupShape(g.name, g.in_features, g.out_offsets) for g in tiny_model.spec.groups)
    shape = ExchangeShape("float32", tiny_model.num_hidden_layers, groups, 8)
    starts = [part.data_ptr() - host.data_ptr() for part in (own.a, own.b)]
    rest = [GroupWeights()] * (len(groups) - 1)
    weights = HostWeights(host, shape, (GroupWeights(starts[0], starts[1], len(own.a)), *rest))
    x, layer = torch.randn(3, groups[0].in_features), tiny_model.num_hidden_layers - 1
    expected = torch.zeros(3, groups[0].out_features)
    for page in range(len(own.a)):
        for number, (left, right) in enumerate(pairwise(groups[0].out_offsets)):
            expected[:, left:right] += x @ own.a[page, layer, number].T @ own.b[page, layer, :, left:right]
    out = torch.empty_like(expected)
    compute_rows(out, x, *weights.gather(layer, 0), groups[0].out_offsets)
    torch.testing.assert_close(out, expected)
