"""A leader finds out which rank is lost, and why. The other ends of the links are in this process."""

import queue
from typing import Any

import pytest

from linked_rank import LinkedRank
from punica_serve.engine.ranks import rank_watch
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import (
    Proposal,
    RankFailed,
    RankHello,
    RankPing,
    RankPong,
)
from punica_serve.engine.ranks.rank_watch import RankWatch
from punica_serve.errors import ConfigError, PunicaError
from punica_serve.protocol import WireError

_DEADLINE_S = 30.0
_HELLO = RankHello("1", "digest", "gloo", "", "cpu", 0)


class _Watched:
    def __init__(self, silence_timeout_s: float) -> None:
        self.ranks: list[Any] = [LinkedRank(1), LinkedRank(2)]
        self.messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.losses: queue.SimpleQueue[PunicaError] = queue.SimpleQueue()
        self.watch = RankWatch(
            self.ranks,
            silence_timeout_s,
            lambda rank, message: self.messages.put((rank.name, message)),
            lambda: None,
            self.losses.put,
        )

    def loss(self) -> PunicaError:
        loss = self.losses.get(timeout=_DEADLINE_S)
        self.watch.close()
        return loss


def test_messages_are_passed_on_and_ranks_that_said_hello_are_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_watch, "_NUM_PINGS", 300)  # one every 0.2 s
    watched = _Watched(60.0)
    first, second = watched.ranks
    first.other.send(_HELLO)
    second.other.send(Proposal("KvCache", 7))
    told = {watched.messages.get(timeout=_DEADLINE_S) for _ in range(2)}
    assert told == {("rank 1", _HELLO), ("rank 2", Proposal("KvCache", 7))}
    for _ in range(2):
        ping = first.other.receive()
        assert isinstance(ping, RankPing)
        first.other.send(RankPong(ping.number))
    assert watched.losses.empty()
    watched.watch.close()
    first.other.close()
    assert watched.losses.empty(), "what ends after the watch is no loss"


def test_a_rank_without_answers_is_lost() -> None:
    watched = _Watched(0.1)
    watched.ranks[1].other.send(_HELLO)
    assert str(watched.loss()) == "rank 2 has answered no ping for 0.1 s"


def test_a_rank_whose_process_ends_is_lost() -> None:
    watched = _Watched(60.0)
    watched.ranks[0].other.close()
    loss = watched.loss()
    assert isinstance(loss, RankLost)
    assert str(loss) == "rank 1 died: killed by SIGKILL"


@pytest.mark.parametrize(("permanent", "kind"), [(True, ConfigError), (False, RankLost)])
def test_a_rank_says_why_it_ends(permanent: bool, kind: type[PunicaError]) -> None:
    watched = _Watched(60.0)
    error = WireError("config_error", "the model does not fit", "engine.model")
    watched.ranks[0].other.send(RankFailed(error, permanent))
    loss = watched.loss()
    assert type(loss) is kind
    assert (str(loss), loss.param) == ("rank 1: the model does not fit", "engine.model")


def test_an_error_of_the_watch_itself_ends_the_group(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise KeyError(7)

    losses: queue.SimpleQueue[PunicaError] = queue.SimpleQueue()
    watch = RankWatch([], 0.1, lambda *_: None, fail, losses.put)
    assert str(losses.get(timeout=_DEADLINE_S)) == "the watch over the ranks has failed (KeyError: 7)"
    watch.close()
    assert "the watch over the ranks has failed" in caplog.text
