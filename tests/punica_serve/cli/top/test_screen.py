import io
from typing import Any

import pytest
from rich.console import Console

from punica_serve.cli.top.screen import Size, screen
from punica_serve.cli.top.state import State

NOW_NS = 1_000_000_000_000


def gpu(number: int, batch_size: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "gpu": {"uuid": f"GPU-{number:02}", "max_batch_size": 32, "num_kv_pages": 100},
        "runner_id": "host-1",
        "batch_size": batch_size,
        "num_adapters": min(batch_size, 2),
        "free_kv_pages": 25,
        "resident_adapters": ["d1", "d2"],
        "adapters_used_ns": [NOW_NS, NOW_NS - 7_000_000_000],
        "tokens": 12_345,
        "is_draining": False,
        **more,
    }


def cluster(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "incarnation": 1,
        "now_ns": NOW_NS,
        "gpus": list(gpus),
        "queue_length": 9,
        "num_runners": 1,
        "num_frontends": 2,
        "advice": {"num_more_gpus": 1, "releasable_runners": []},
        "recent": {
            "window_s": 30.0,
            "requests_per_s": 1.25,
            "tokens_per_s": 321.0,
            "first_token_s": {"p50": 0.05, "p90": 0.1, "p99": 0.25},
            "inter_token_s": None,
        },
        "adapters": {"d1": {"name": "roman", "rank": 8}, "d2": {"name": None, "rank": None}},
        "marks": [{"number": 1, "at_ns": NOW_NS, "kind": "gpu_joined", "gpu_uuid": "GPU-00", "count": 2}],
        **more,
    }


def shown(told: dict[str, Any] | None, width: int = 80, height: int | None = None, **state: Any) -> list[str]:
    known = State(**state)
    if told:
        known.take({"type": "cluster", "cluster": told})
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(screen(known, "http://cluster", Size(width, height)))
    return captured.get().splitlines()


def line_with(lines: list[str], word: str) -> str:
    return next(line for line in lines if word in line)


def test_all_that_there_is_to_say() -> None:
    lines = shown(cluster(gpu(0, 16), gpu(1, is_draining=True)), width=120)
    assert line_with(lines, "queue").startswith("2 GPUs  1 runner  2 frontends  ")
    assert "queue 9  1.2 requests/s  321 tokens/s  1 more GPU advised" in line_with(lines, "queue")
    assert "first token 50/100/250 ms, between tokens -" in line_with(lines, "p50")
    busy = line_with(lines, "GPU-00")
    assert "16/32" in busy and "75%" in busy and "2/2" in busy and "12,345" in busy
    assert busy.count("█") == 16 + 12
    assert "draining" in line_with(lines, "GPU-01")
    assert line_with(lines, "roman").split() == ["roman", "8", "2", "now"]
    assert line_with(lines, "d2").split() == ["d2", "?", "2", "7", "s", "ago"]
    assert "gpu joined 2x GPU-00" in lines[-1]


@pytest.mark.parametrize("width", [20, 40, 79, 200])
def test_no_line_is_longer_than_the_terminal_and_the_batch_is_always_told(width: int) -> None:
    lines = shown(cluster(gpu(0, 16)), width)
    assert max(map(len, lines)) <= width
    assert width < 40 or any("16/32" in line for line in lines)


@pytest.mark.parametrize("height", [10, 24, 50])
def test_many_gpus_leave_room_for_the_rest(height: int) -> None:
    lines = shown(cluster(*(gpu(number) for number in range(64))), height=height)
    assert len(lines) <= height
    assert any((line.startswith("and ") and line.endswith("GPUs more")) or line == "64 GPUs" for line in lines)
    assert height < 24 or any("roman" in line for line in lines)


def test_a_batch_of_one_shows() -> None:
    row = line_with(shown(cluster(gpu(0, 1, free_kv_pages=100))), "GPU-00")
    assert row.count("█") == 1


def test_trouble_stands_beside_what_was_known() -> None:
    lines = shown(None, trouble="the scheduler can't be reached")
    assert lines[1:] == ["the scheduler can't be reached", "waiting for the cluster"]
