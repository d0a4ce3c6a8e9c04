import pytest

from punica_serve.process.death_reason import death_reason


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-35, "killed by signal 35")],
)
def test_a_death_is_told_in_words_also_by_a_real_time_signal(returncode: int, words: str) -> None:
    assert death_reason(returncode) == words
