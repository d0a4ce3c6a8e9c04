"""Packed forms share the budget of the host's cache, and go before their adapters, and with them."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from punica_serve.process.private_files import open_own_file
from punica_serve.store.cache_folder import CacheFolder

DIGESTS = [letter * 64 for letter in "abcd"]


@pytest.fixture
def cache(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path)


def adds(cache: CacheFolder, digest: str, num_bytes: int, used_ns: int) -> None:
    def download(folder: Path) -> None:
        (folder / "weights").write_bytes(bytes(num_bytes))

    held = cache.fill(digest, download)
    assert held is not None
    held.close()
    os.utime(cache.path(digest), ns=(used_ns, used_ns))


def packs(cache: CacheFolder, digest: str, num_bytes: int, used_ns: int, layout: str = "layout") -> None:
    cache.packed.write(digest, layout, lambda descriptor: _fill(descriptor, num_bytes), lambda: True)
    os.utime(cache.packed.path(digest, layout), ns=(used_ns, used_ns))


def _fill(descriptor: int, num_bytes: int) -> None:
    os.write(descriptor, bytes(num_bytes))


def there(cache: CacheFolder) -> tuple[set[str], set[str]]:
    """First letters of the adapters, and of those with a packed form."""
    packed = {entry.digest[0] for entry in cache.packed.entries()}
    return {digest[0] for digest in cache.digests()}, packed


def test_a_packed_form_goes_before_its_adapter_however_lately_it_was_used(cache: CacheFolder) -> None:
    adds(cache, DIGESTS[0], 100, 10)
    packs(cache, DIGESTS[0], 100, 99)
    adds(cache, DIGESTS[1], 100, 20)
    cache.make_room(100, 350)
    assert there(cache) == ({"a", "b"}, set())
    cache.make_room(100, 250)
    assert there(cache) == ({"b"}, set())


def test_one_without_files_here_goes_by_its_own_use(cache: CacheFolder) -> None:
    packs(cache, DIGESTS[2], 100, 5)
    packs(cache, DIGESTS[3], 100, 30)
    adds(cache, DIGESTS[0], 100, 10)
    cache.make_room(0, 250)
    assert there(cache) == ({"a"}, {"d"})


def test_a_form_of_a_layout_that_nobody_uses_any_more_goes_alone(cache: CacheFolder) -> None:
    packs(cache, DIGESTS[0], 100, 5, "of a former version")
    packs(cache, DIGESTS[0], 100, 30)
    packs(cache, DIGESTS[1], 100, 20)
    cache.make_room(0, 250)
    assert [cache.packed.has(DIGESTS[0], layout) for layout in ("of a former version", "layout")] == [False, True]
    cache.make_room(0, 50)
    assert not list(cache.packed.entries()) and os.listdir(cache.packed._root) == ["incoming"]


def test_it_goes_with_its_adapter_also_with_one_that_is_elsewhere(cache: CacheFolder) -> None:
    adds(cache, DIGESTS[0], 100, 10)
    for digest in DIGESTS[:2]:
        packs(cache, digest, 100, 10)
        assert cache.remove(digest)
    assert there(cache) == (set(), set())


def test_it_stays_with_an_adapter_in_use(cache: CacheFolder) -> None:
    adds(cache, DIGESTS[0], 100, 10)
    packs(cache, DIGESTS[0], 100, 10)
    held = cache.hold(DIGESTS[0])
    assert held is not None and not cache.remove(DIGESTS[0])
    assert there(cache) == ({"a"}, {"a"})
    held.close()


def test_what_a_dead_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    incoming = CacheFolder(tmp_path).packed._root / "incoming"
    (incoming / "dead").write_bytes(b"half")
    live = incoming / "live"
    live.write_bytes(b"half")
    with open(live, "rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        CacheFolder(tmp_path)
        assert [rest.name for rest in incoming.iterdir()] == ["live"]


def test_after_an_error_nothing_is_there(cache: CacheFolder) -> None:
    def fail(descriptor: int) -> None:
        os.write(descriptor, b"half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        cache.packed.write(DIGESTS[0], "layout", fail, lambda: True)
    assert there(cache) == (set(), set())
    assert not cache.packed.has(DIGESTS[0], "layout")


def _open_to_others(path: Path) -> None:
    path.chmod(0o620)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)
    (path / "file").touch()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_open_to_others, "others may have written it"),
        (_pipe, "it is not a regular file"),
        (_link, "symbolic links"),
        (_folder, "it is not a regular file"),
    ],
)
def test_what_others_may_have_written_is_not_opened_and_is_made_again(
    cache: CacheFolder, tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    packs(cache, DIGESTS[0], 100, 10)
    os.close(open_own_file(cache.packed.path(DIGESTS[0], "layout")))
    spoil(tmp_path / "packed" / DIGESTS[0] / "layout")
    open_files = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=f"{reason}.*layout"):
        open_own_file(cache.packed.path(DIGESTS[0], "layout"))
    assert set(os.listdir("/proc/self/fd")) <= set(open_files), "others may close theirs meanwhile"
    cache.packed.drop(DIGESTS[0], "layout")
    assert not cache.packed.has(DIGESTS[0], "layout")
    packs(cache, DIGESTS[0], 100, 10)
    os.close(open_own_file(cache.packed.path(DIGESTS[0], "layout")))


def test_a_file_of_another_user_is_not_opened(cache: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    packs(cache, DIGESTS[0], 100, 10)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="others may have written it"):
        open_own_file(cache.packed.path(DIGESTS[0], "layout"))


def test_where_the_disk_does_not_say_what_it_has_there_is_nothing(
    cache: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs(cache, DIGESTS[0], 10, 1)

    def fail(*_: object, **__: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", fail)
        assert not cache.packed.has(DIGESTS[0], "layout")
    assert cache.packed.has(DIGESTS[0], "layout")
