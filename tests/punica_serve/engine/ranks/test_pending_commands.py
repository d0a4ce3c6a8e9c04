"""Commands end when all ranks have ended them, with the first error, or with the group."""

import pytest

from punica_serve.engine.ranks import pending_commands
from punica_serve.engine.ranks.pending_commands import PendingCommands
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import Done, RankAudit
from punica_serve.errors import RequestFailed, StoreUnavailable
from punica_serve.errors.invariants import InvariantBroken
from punica_serve.protocol import WireError


def test_a_command_ends_with_the_accounts_of_all_ranks() -> None:
    pending = PendingCommands()
    first, future = pending.add(["rank 1", "rank 2"])
    second, _ = pending.add(["rank 1", "rank 2"])
    assert first != second
    audit = RankAudit({1: [2]}, {})
    pending.end("rank 2", Done(first, audit=audit))
    assert not future.done()
    pending.end("rank 1", Done(first, audit=audit))
    assert future.result(0) == [audit, audit]


def test_an_error_names_its_rank_and_waits_for_the_others() -> None:
    """Pages are free again only when no rank writes to them any more."""
    pending = PendingCommands()
    number, future = pending.add(["rank 1", "rank 2"])
    pending.end("rank 1", Done(number, WireError.of(StoreUnavailable("the disk is gone"))))
    assert not future.done()
    pending.end("rank 2", Done(number, WireError.of(RequestFailed("later"))))
    with pytest.raises(StoreUnavailable, match="rank 1: the disk is gone"):
        future.result(0)


def test_a_rank_ends_a_command_once() -> None:
    pending = PendingCommands()
    number, _ = pending.add(["rank 1", "rank 2"])
    pending.end("rank 1", Done(number))
    with pytest.raises(InvariantBroken, match="rank 1 has ended command 1 twice"):
        pending.end("rank 1", Done(number))


def test_a_rank_that_takes_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = PendingCommands()
    number, _ = pending.add(["rank 1", "rank 2", "rank 3"])
    pending.end("rank 2", Done(number))
    pending.check()
    monkeypatch.setattr(pending_commands, "COMMAND_TIMEOUT_S", -1.0)
    with pytest.raises(RankLost, match="rank 1 and rank 3"):
        pending.check()


def test_all_commands_fail_with_the_group() -> None:
    pending = PendingCommands()
    _, before = pending.add(["rank 1"])
    pending.fail(RankLost("rank 1 died"))
    _, after = pending.add(["rank 1"])
    for future in (before, after):
        with pytest.raises(RankLost, match="rank 1 died"):
            future.result(0)
