"""Aliases are adapters of their own, with the bytes of a few."""

from punica_serve.bench.coldstart_series.shared_bytes import SharedBytes
from punica_serve.bench.driver import preload
from punica_serve.engine.engine import Engine


def test_aliases_are_loaded_each_by_itself(engine: Engine, shared: SharedBytes) -> None:
    with shared.aliases("x", [0, 1, 3, 0]) as refs:
        assert sorted(refs) == [0, 1, 3] and len({ref.digest for ref in refs.values()}) == 3
        preload(engine, refs.values())
        assert {ref.digest for ref in refs.values()} == set(engine.resident_adapters)


def test_an_alias_has_the_bytes_of_another_without_a_copy(engine: Engine, shared: SharedBytes) -> None:
    used_bytes = engine.host_cache.used_bytes
    with shared.aliases("x", [1, 4]) as refs:
        own, one, four = (
            engine.host_cache.get(digest) for digest in (shared.own[1].digest, refs[1].digest, refs[4].digest)
        )
        assert own and one and four
        starts = {copy.packed.groups["qkv"].a.data_ptr() for copy in (own, one, four)}
        assert len(starts) == 1 and own.packed.num_bytes == shared.num_bytes
        assert engine.host_cache.used_bytes == used_bytes + 2 * 4096
        for copy in (own, one, four):
            engine.host_cache.release(copy)


def test_aliases_leave_device_and_host_and_their_bytes_stay(engine: Engine, shared: SharedBytes) -> None:
    with shared.aliases("x", range(4)) as refs:
        preload(engine, refs.values())
    assert engine.resident_adapters == ()
    assert set(engine.host_cache.digests) == {ref.digest for ref in shared.own}
    with shared.aliases("x", range(4)) as again:  # the same names are cold again
        assert again[0].digest not in engine.resident_adapters
        preload(engine, again.values())
