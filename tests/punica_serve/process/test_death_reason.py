import pytest

from punica_serve.process.death_reason import death_reason, failure_reason


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-35, "killed by signal 35")],
)
def test_a_death_is_told_in_words_also_by_a_real_time_signal(returncode: int, words: str) -> None:
    assert death_reason(returncode) == words


@pytest.mark.parametrize(
    ("returncode", "output", "reason"),
    [
        (2, "first\nlast\n", "last"),
        (2, " \n", "exit code 2"),
        (-11, "Fatal Python error: Segmentation fault\n\nExtension modules: numpy (total: 1)\n", "killed by SIGSEGV"),
    ],
)
def test_a_failure_is_told_by_its_last_line_unless_a_fault_killed_it(returncode: int, output: str, reason: str) -> None:
    assert failure_reason(returncode, output) == reason
