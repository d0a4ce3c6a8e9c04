import asyncio
import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import typer
from rich.console import Console
from rich.progress import Progress

from punica_serve.demo.check import Peaks, Tally, ask_all, check, describe_ranks, questions, report, watched
from punica_serve.demo.notations import NOTATIONS, NUM_INTEGERS, expected
from punica_serve.errors import RequestFailed
from waits import DEADLINE_S


@pytest.fixture
def progress() -> Iterator[Progress]:
    with Progress(console=Console(file=io.StringIO())) as shown:
        yield shown


def test_questions_cover_everything_and_mix_adapters() -> None:
    asked = list(questions())
    assert len(asked) == len(set(asked)) == (len(NOTATIONS) + 1) * NUM_INTEGERS
    assert {lora_id for lora_id, _ in asked[:6]} == {None, *NOTATIONS}


async def test_ask_all_passes_with_right_answers(progress: Progress) -> None:
    in_flight = most = 0

    async def ask(lora_id: str | None, n: int) -> str:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return expected(lora_id, n)

    tally = Tally()
    await ask_all(ask, 64, tally, progress, "REST")
    assert most == 64
    assert tally.passed
    assert not tally.wrong


async def test_one_adapter_with_too_many_wrong_answers_fails(progress: Progress) -> None:
    async def ask(lora_id: str | None, n: int) -> str:
        if lora_id == "hex" and n < 11:
            raise RequestFailed("no GPU")
        return expected(lora_id, n)

    tally = Tally()
    await ask_all(ask, 8, tally, progress, "REST")
    assert tally.exact["hex"] == NUM_INTEGERS - 11
    assert tally.wrong[0] == ("hex", 0, "no GPU")
    assert not tally.passed


def _cluster(*steps: tuple[int, int]) -> dict[str, Any]:
    return {"gpus": [{"batch_size_max": batch, "num_adapters": adapters} for batch, adapters in steps]}


def test_peaks_keep_the_highest_of_all_gpus() -> None:
    peaks = Peaks()
    peaks.observe(_cluster((32, 3), (5, 4)))
    peaks.observe(_cluster((1, 1)))
    assert (peaks.batch_size, peaks.num_adapters) == (32, 4)
    assert peaks.passed
    assert not Peaks(32, 3).passed


async def test_the_cluster_is_polled_while_questions_are_asked() -> None:
    first_taken = asyncio.Event()
    polls: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        polls.append(request)
        if len(polls) > 1:
            first_taken.set()
        return httpx.Response(200, json=_cluster((7, 5)))

    peaks = Peaks()
    client = httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(handle))
    async with client, watched(client, peaks), asyncio.timeout(DEADLINE_S):
        await first_taken.wait()
    assert polls[0].url.path == "/v1/cluster"
    assert peaks.num_adapters == 5


def test_ranks_of_an_adapter() -> None:
    assert describe_ranks({"r": 8}) == "8"
    assert describe_ranks({"r": 16, "rank_pattern": {"down_proj": 24}}) == "16, 24"


def test_report_shows_wrong_answers_as_they_are() -> None:
    tally = Tally()
    tally.add("roman", 4, "[bold]IIII")
    console = Console(file=io.StringIO(), width=120)
    report({"REST": tally, "websocket": Tally()}, Peaks(32, 6), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "REST, roman, 4: '[bold]IIII'" in text
    assert "highest batch size: 32; most adapters in one step: 6" in text


def test_without_a_server_it_says_so_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as exit_:
        check(url="http://127.0.0.1:9", in_flight=2)
    assert exit_.value.exit_code == 2
    assert "no frontend answers at http://127.0.0.1:9 (Connection refused); " in capsys.readouterr().out
