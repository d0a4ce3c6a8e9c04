import asyncio
from typing import Any, cast

from punica_frontend.http.corked import MAX_CORKED_BYTES, CorkedTransport


class Written:
    """A transport that remembers."""

    def __init__(self) -> None:
        self.writes: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.writes.append("closed")

    def pause_reading(self) -> None:
        self.writes.append("paused")

    def resume_reading(self) -> None:
        self.writes.append("resumed")

    def is_closing(self) -> bool:
        return "closed" in self.writes

    def get_extra_info(self, name: str) -> str:
        return f"extra {name}"


def corked(written: Written) -> CorkedTransport:
    return CorkedTransport(cast(Any, written), asyncio.get_running_loop())


async def test_writes_of_one_turn_leave_together() -> None:
    written = Written()
    transport = corked(written)
    transport.write(b"a")
    transport.write(b"b")
    assert written.writes == []
    await asyncio.sleep(0)
    transport.write(b"c")
    await asyncio.sleep(0)
    assert written.writes == [b"ab", b"c"]


async def test_earlier_writes_leave_before_the_close() -> None:
    written = Written()
    transport = corked(written)
    transport.write(b"last")
    transport.close()
    await asyncio.sleep(0)
    assert written.writes == [b"last", "closed"]


async def test_what_is_written_now_waits_for_nothing_and_keeps_the_order() -> None:
    written = Written()
    transport = corked(written)
    transport.write_now(b"a")
    transport.write(b"b")
    transport.write_now(b"c")
    assert written.writes == [b"a", b"bc"]
    await asyncio.sleep(0)
    assert written.writes == [b"a", b"bc"]


async def test_a_long_answer_leaves_within_the_turn() -> None:
    written = Written()
    transport = corked(written)
    for _ in range(3):
        transport.write(b"x" * MAX_CORKED_BYTES)
    assert written.writes == [b"x" * 2 * MAX_CORKED_BYTES]
    await asyncio.sleep(0)
    assert written.writes[1:] == [b"x" * MAX_CORKED_BYTES]


async def test_nothing_is_written_to_a_transport_that_has_ended() -> None:
    written = Written()
    transport = corked(written)
    transport.write(b"late")
    written.close()
    await asyncio.sleep(0)
    assert written.writes == ["closed"]


async def test_all_else_is_the_transports_own() -> None:
    assert corked(Written()).get_extra_info("peername") == "extra peername"


async def test_it_reads_only_while_both_sides_want_it() -> None:
    written = Written()
    transport = corked(written)
    transport.pause_reading()
    transport.hold_reading(True)
    transport.resume_reading()
    transport.hold_reading(True)
    assert written.writes == ["paused"]
    transport.hold_reading(False)
    assert written.writes == ["paused", "resumed"]
    transport.close()
    transport.pause_reading()
    assert written.writes == ["paused", "resumed", "closed"]
