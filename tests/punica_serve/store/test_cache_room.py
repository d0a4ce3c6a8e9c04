"""A process looks at the whole cache seldom, and yet nobody exceeds the budget."""

import hashlib
import os
from pathlib import Path

import pytest

from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.cache_room import CacheRoom

_SIZE = 1000
_BUDGET = 400 * _SIZE


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes for which each look makes room."""
    seen: list[int] = []
    make_room = CacheFolder.make_room

    def spy(folder: CacheFolder, num_bytes: int, budget_bytes: int) -> int:
        seen.append(num_bytes)
        return make_room(folder, num_bytes, budget_bytes)

    monkeypatch.setattr(CacheFolder, "make_room", spy)
    return seen


def _add(folder: CacheFolder, room: CacheRoom, number: int) -> None:
    """A packed form; later ones are used later."""
    room.take(_SIZE)
    digest = hashlib.sha256(str(number).encode()).hexdigest()

    def write(descriptor: int) -> None:
        os.truncate(descriptor, _SIZE)
        os.utime(descriptor, ns=(number, number))

    folder.packed.write(digest, "layout", write, lambda: True)


def _used(folder: CacheFolder) -> int:
    return sum(entry.num_bytes for entry in folder.packed.entries())


def test_an_empty_cache_is_looked_at_a_few_times_until_it_is_full(tmp_path: Path, looks: list[int]) -> None:
    folder = CacheFolder(tmp_path)
    room = CacheRoom(folder, _BUDGET)
    for number in range(360):
        _add(folder, room, number)
    assert len(looks) < 25 and _used(folder) == 360 * _SIZE


def test_a_full_cache_is_looked_at_seldom_and_keeps_what_was_used_last(tmp_path: Path, looks: list[int]) -> None:
    folder = CacheFolder(tmp_path)
    room = CacheRoom(folder, _BUDGET)
    for number in range(440):
        _add(folder, room, number)
        assert number % 50 or _used(folder) <= _BUDGET
    before = len(looks)
    for number in range(440, 470):
        _add(folder, room, number)
    assert len(looks) - before <= 12
    assert 350 * _SIZE < _used(folder) <= _BUDGET
    oldest = min(entry.used_ns for entry in folder.packed.entries())
    assert oldest >= 470 - 400


def test_processes_that_share_a_cache_stay_within_its_budget(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    rooms = [CacheRoom(folder, _BUDGET) for _ in range(8)]
    for number in range(384):
        _add(folder, rooms[number % 8], number)
    most = 0
    for number in range(384, 460):
        _add(folder, rooms[number % 8], number)
        most = max(most, _used(folder)) if number % 10 == 0 else most
    assert most <= _BUDGET


def test_what_is_larger_than_the_slack_gets_its_room_each_time(tmp_path: Path, looks: list[int]) -> None:
    folder = CacheFolder(tmp_path)
    room = CacheRoom(folder, 3 * _SIZE)
    for number in range(6):
        _add(folder, room, number)
    assert looks == 6 * [_SIZE] and _used(folder) == 3 * _SIZE
