import io
from typing import Any

import pytest
from rich.console import Console

from punica_serve.cli.top.display import Display, Order
from punica_serve.cli.top.screen import screen
from punica_serve.cli.top.state import State

S = 1_000_000_000
NOW_NS = 1_000 * S


def gpu(number: int, batch_size: float = 0.0, device: str = "cuda:0", **more: Any) -> dict[str, Any]:
    return {
        "gpu": {
            "uuid": f"GPU-{number:02}",
            "name": f"host-1/{number}",
            "device": device,
            "max_batch_size": 32,
            "num_kv_pages": 100,
        },
        "runner_id": "host-1",
        "batch_size_mean": batch_size,
        "batch_size_max": 32,
        "num_adapters": min(int(batch_size), 2),
        "free_kv_pages": 25,
        "resident_adapters": ["d1", "d2"],
        "adapters_used_ns": [NOW_NS, NOW_NS - 7 * S],
        "tokens": 12_345,
        "is_draining": False,
        **more,
    }


#: Names of judged promises.
PROMISES = ("first_token_kept", "first_token_broken", "time_per_token_kept", "time_per_token_broken")


def mark(kind: str, *uuids: str, number: int = 1, at_ns: int = NOW_NS, count: int = 1) -> dict[str, Any]:
    return {"number": number, "at_ns": at_ns, "kind": kind, "gpu_uuids": list(uuids), "count": count}


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
            "promises": dict.fromkeys(PROMISES, 0),
        },
        "counters": dict.fromkeys(PROMISES, 0),
        "adapters": {
            "d1": {"name": "roman", "owner": "acme", "rank": 8},
            "d2": {"name": None, "owner": None, "rank": None},
        },
        "marks": [mark("gpu_joined", "GPU-00", "GPU-01", count=2)],
        **more,
    }


def history(**batch_sizes: list[float | None]) -> dict[str, Any]:
    """The seconds before NOW_NS, by the GPUs' numbers."""
    num_rows = max(map(len, batch_sizes.values()))
    return {
        "at_ns": [NOW_NS - (num_rows - row) * S for row in range(num_rows)],
        "gpus": {uuid.replace("_", "-"): {"batch_size_mean": means} for uuid, means in batch_sizes.items()},
    }


def state_of(*clusters: dict[str, Any], past: dict[str, Any] | None = None) -> State:
    state = State()
    if past:
        state.take({"type": "history", "history": past})
    for told in clusters:
        state.take({"type": "cluster", "cluster": told})
    return state


def drawn(state: State, display: Display) -> list[str]:
    console = Console(file=io.StringIO(), width=display.width)
    with console.capture() as captured:
        console.print(screen(state, "http://cluster", display))
    return captured.get().splitlines()


def shown(told: dict[str, Any], width: int = 80, height: int | None = None) -> list[str]:
    return drawn(state_of(told), Display(width, height))


def row_of(lines: list[str], gpu: str) -> list[str]:
    """The words of a GPU's row, without its name."""
    return next(line for line in lines if line.startswith(gpu)).split()[1:]


def line_with(lines: list[str], word: str) -> str:
    return next(line for line in lines if word in line)


def test_promises_are_told_once_any_was_judged() -> None:
    told = cluster(gpu(0, 1.0))
    assert not any("promises" in line for line in shown(told))
    told["counters"] |= {"first_token_kept": 4_000, "first_token_broken": 7}
    told["recent"]["promises"] |= {"first_token_kept": 1_999, "first_token_broken": 1}
    line = line_with(shown(told, width=120), "promises")
    assert line == "promises kept in the last 30 s: first token 99.9 %, 4000 kept and 7 broken in all"
    told["counters"] |= {"time_per_token_broken": 3}
    told["recent"]["promises"] = dict.fromkeys(PROMISES, 0)
    line = line_with(shown(told, width=140), "promises")
    assert line.endswith("first token -, 4000 kept and 7 broken in all; time per token -, 0 kept and 3 broken in all")


def test_all_that_there_is_to_say() -> None:
    lines = shown(cluster(gpu(0, 15.5), gpu(1, is_draining=True)), width=120)
    assert line_with(lines, "queue").startswith("2 GPUs  1 runner  2 frontends  ")
    assert "queue 9  1.2 requests/s  321 tokens/s  1 more GPU advised" in line_with(lines, "queue")
    assert "first token 50/100/250 ms, between tokens -" in line_with(lines, "p50")
    busy = line_with(lines, "host-1/0")
    assert "15.5/32" in busy and "75%" in busy and "2/2" in busy and "12,345" in busy
    assert busy.count("█") == 8
    assert line_with(lines, "0/32").endswith("draining")
    assert line_with(lines, "roman").split() == ["roman", "acme", "8", "2", "now"]
    assert line_with(lines, "d2").split() == ["d2", "?", "?", "2", "7", "s", "ago"]
    assert lines[-1].endswith("joined 2x host-1/0, host-1/1")
    assert not any("GPU-0" in line for line in lines)


def test_an_adapter_of_ones_own_differs_from_a_shared_one() -> None:
    adapters = {
        "d1": {"name": "roman", "owner": "acme", "rank": 8},
        "d2": {"name": "roman", "owner": "shared", "rank": 8},
    }
    lines = shown(cluster(gpu(0), adapters=adapters))
    assert [line.split()[:2] for line in lines if line.startswith("roman")] == [["roman", "acme"], ["roman", "shared"]]


@pytest.mark.parametrize("width", [20, 40, 79, 80, 100, 200, 250])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_no_line_is_longer_than_the_terminal_and_the_batch_is_always_told(width: int, is_ascii: bool) -> None:
    lines = drawn(state_of(cluster(gpu(0, 16))), Display(width, None, is_ascii))
    assert max(map(len, lines)) <= width
    assert any("16.0/32" in line for line in lines)
    assert "".join(lines).isascii() == is_ascii


@pytest.mark.parametrize("height", [10, 24, 50])
@pytest.mark.parametrize("width", [40, 80, 250])
def test_many_gpus_leave_room_for_the_rest(width: int, height: int) -> None:
    lines = shown(cluster(*(gpu(number) for number in range(128))), width, height)
    assert len(lines) <= height
    assert any((line.startswith("and ") and line.endswith("GPUs more")) or line == "128 GPUs" for line in lines)
    assert height < 24 or any("roman" in line for line in lines)


def test_a_groups_devices_stand_in_its_row() -> None:
    lines = shown(cluster(gpu(0, device="cuda:0,cuda:1"), gpu(1, device="cuda:2,cuda:3,cuda:4"), gpu(2)), width=120)
    assert "cuda:0,cuda:1" in row_of(lines, "host-1/0")
    assert "cuda:2…cuda:4" in row_of(lines, "host-1/1")
    assert "group" not in "".join(shown(cluster(gpu(0)), width=120))


def test_pages_in_use_show_however_few() -> None:
    row = line_with(shown(cluster(gpu(0, free_kv_pages=99)), width=120), "host-1/0")
    assert row.count("█") == 1


def test_the_history_comes_before_now_and_the_newest_second_is_right() -> None:
    state = state_of(cluster(gpu(0, 32), gpu(1), marks=[]), past=history(GPU_00=[0, 4, 8.5], GPU_01=[None, 0, 32]))
    lines = drawn(state, Display(80, None, is_ascii=True))
    assert row_of(lines, "host-1/0")[0] == ".:=@"
    assert row_of(lines, "host-1/1")[0] == ".@."
    assert line_with(lines, "host-1/0").index("@ ") == line_with(lines, "KvCache").index("w ")


def test_events_stand_in_the_rows_and_seconds_where_they_happened() -> None:
    marks = [
        mark("gpu_lost", "GPU-01", number=1, at_ns=NOW_NS - S),
        mark("migrated", "GPU-00", number=2, at_ns=NOW_NS - S + 5),
    ]
    past = history(GPU_00=[32, 32, 32], GPU_01=[16, 16, None])
    known = cluster(gpu(0), gpu(1), now_ns=NOW_NS - 4 * S, marks=[])
    state = state_of(known)
    state.take({"type": "history", "history": past})
    state.take({"type": "cluster", "cluster": cluster(gpu(0, 32), marks=marks)})
    lines = drawn(state, Display(80, None, is_ascii=True))
    assert row_of(lines, "host-1/0")[0] == ".@@M@"
    assert row_of(lines, "host-1/1") == [".++X", "gone"]
    legend = line_with(lines, "mean batch size")
    assert legend == "mean batch size 0 .:-=+*#%@ 32  (blank: not in the cluster)  X lost  M moved"
    assert lines[-1].endswith("lost host-1/1")


def test_the_busiest_are_on_top_unless_names_are_asked_for() -> None:
    state = state_of(cluster(gpu(2, 3), gpu(10, 32), gpu(1, 16)))

    def names(order: Order) -> list[str]:
        lines = drawn(state, Display(80, None, order=order))
        return [line.split()[0] for line in lines if line.startswith("host-1/")]

    assert names(Order.BUSY) == ["host-1/10", "host-1/1", "host-1/2"]
    assert names(Order.NAME) == ["host-1/1", "host-1/2", "host-1/10"]


def test_long_names_keep_their_ends() -> None:
    info = {**gpu(0)["gpu"], "name": "runner-of-the-second-rack-on-the-left/7"}
    lines = shown(cluster(gpu(0, gpu=info)), width=80)
    assert line_with(lines, "on-the-left/7").startswith("…")


def test_trouble_stands_beside_what_was_known() -> None:
    lines = drawn(State(trouble="the scheduler can't be reached"), Display(80, None))
    assert lines[1:] == ["the scheduler can't be reached", "waiting for the cluster"]
