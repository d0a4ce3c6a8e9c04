import pytest

from punica_scheduler.core.adapter_account import AdapterAccount
from punica_scheduler.core.request import RequestRecord
from punica_serve.protocol import AdapterRef, Request, SamplingParams


def record(digest: str | None, rank: int = 8) -> RequestRecord:
    ref = None if digest is None else AdapterRef(digest, "/x", 1, {"q_proj": rank, "o_proj": rank})
    return RequestRecord.of("f", 0, Request("r", 0, (1,), SamplingParams(), ref))


def test_an_adapter_takes_pages_from_its_first_request_to_its_last() -> None:
    account = AdapterAccount({"qkv": 4, "o": 3, "down": 2})
    first, second, other, without = record("x", 16), record("x", 16), record("y"), record(None)
    running = [first, second, other, without]
    for own in running:
        account.add(own)
    account.check_invariants(running, "A")
    assert account.free_pages == {"qkv": 1, "o": 0, "down": 2}
    assert account.used_pages == {"qkv": 3, "o": 3}
    assert account.refcounts == {"x": 2, "y": 1, None: 1}
    assert [account.remove(own) for own in (first, second)] == [False, True]
    account.check_invariants([other, without], "A")
    assert account.used_pages == {"qkv": 1, "o": 1}


def test_adapters_in_use_fit_and_new_ones_share_what_is_left() -> None:
    account = AdapterAccount({"qkv": 3, "o": 3})
    account.add(record("x"))
    assert account.fits(record("x")) and account.fits(record("y", 16)) and not account.fits(record("y", 24))
    assert account.fits_all([record("x"), record("y"), record("z"), record("z"), record(None)])
    assert not account.fits_all([record("y"), record("z", 16)])


def test_the_audit_finds_a_stranger() -> None:
    account = AdapterAccount({"qkv": 3, "o": 3})
    account.refcounts["stranger"] = 1
    with pytest.raises(AssertionError, match="adapters of A"):
        account.check_invariants([], "A")
