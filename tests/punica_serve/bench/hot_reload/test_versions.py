import pytest

from punica_serve.bench.hot_reload.versions import Verdict, VersionHistory


@pytest.fixture
def history() -> VersionHistory:
    """Roman at first, and hex in its place: sent at 10 s, registered at 11 s."""
    history = VersionHistory()
    history.begin("XLII", 0.0).registered_s = 1.0
    history.begin("2a", 10.0).registered_s = 11.0
    return history


@pytest.mark.parametrize(
    ("text", "sent_s", "ended_s", "verdict"),
    [
        ("XLII", 5.0, 6.0, Verdict.WHOLE),
        ("2a", 20.0, 21.0, Verdict.WHOLE),
        ("XLII", 9.0, 30.0, Verdict.WHOLE),  # a long one keeps the version that it came for
        ("2a", 9.0, 30.0, Verdict.WHOLE),
        ("XLII", 10.5, 10.8, Verdict.WHOLE),  # while the registration is under way it may be either
        ("2a", 10.5, 10.8, Verdict.WHOLE),
        ("XLII", 11.5, 12.0, Verdict.STALE),
        ("2a", 8.0, 9.0, Verdict.STALE),
        ("XL2a", 10.5, 10.8, Verdict.MIXED),
        ("", 5.0, 6.0, Verdict.MIXED),
    ],
)
def test_an_answer(history: VersionHistory, text: str, sent_s: float, ended_s: float, verdict: Verdict) -> None:
    assert history.judge(text, sent_s, ended_s) is verdict


def test_of_two_versions_that_were_replaced_neither_comes_back() -> None:
    history = VersionHistory()
    for number, answer in enumerate(("a", "b", "c")):
        history.begin(answer, float(number)).registered_s = number + 0.5
    verdicts = [history.judge(answer, 5.0, 6.0) for answer in ("a", "b", "c")]
    assert verdicts == [Verdict.STALE, Verdict.STALE, Verdict.WHOLE]


def test_an_adapter_that_never_changes_says_one_thing() -> None:
    history = VersionHistory.unchanging("42")
    assert history.judge("42", 0.0, 1.0) is Verdict.WHOLE
    assert history.judge("43", 0.0, 1.0) is Verdict.MIXED
