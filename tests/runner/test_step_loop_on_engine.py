"""The step loop over the real engine when memory is short."""

from collections import defaultdict
from pathlib import Path

from punica_runner.step_loop import StepLoop
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AssignmentId, Request, SamplingParams, StartRequest, StepReport


def streams(model: Path, num_kv_pages: int) -> tuple[dict[int, list[int]], list[StepReport]]:
    """The tokens of three requests that together grow to 21 pages, and all reports of their steps."""
    config = EngineConfig(model=model, dtype="float32", page_size=4, num_kv_pages=num_kv_pages, cpu_threads=1)
    engine = Engine(config)
    loop = StepLoop(engine, "gpu", "host/0")
    sampling = SamplingParams(max_tokens=20, ignore_eos=True, seed=3, temperature=1.0)
    loop.apply(
        StartRequest("gpu", number, AssignmentId(1, number), Request(f"r{number}", number, (5, 6, 7, number), sampling))
        for number in (1, 2, 3)
    )
    tokens: dict[int, list[int]] = defaultdict(list)
    reports: list[StepReport] = []
    for _ in range(200):
        told, _ = loop.step()
        for report in told:
            assert isinstance(report, StepReport)
            reports.append(report)
            for counter, position, token_id in zip(report.assignments, report.positions, report.token_ids, strict=True):
                assert position == len(tokens[counter])
                tokens[counter].append(token_id)
    engine.close()
    return tokens, reports


def test_the_newest_is_left_out_of_a_step_that_lacks_a_page_and_the_worker_says_so(tiny_llama: Path) -> None:
    plenty, _ = streams(tiny_llama, num_kv_pages=64)
    tokens, reports = streams(tiny_llama, num_kv_pages=10)
    starved = [report for report in reports if report.starved]
    assert starved and starved[0].starved == (3,), "the newest goes first"
    assert all(not set(report.starved) & set(report.assignments) for report in starved)
    assert tokens == plenty, "and it goes on where it was once there is room"
    assert reports[-1].free_kv_pages == 10
