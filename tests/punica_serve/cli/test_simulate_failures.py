import io

from rich.console import Console

from punica_serve.cli.simulate_failures import print_failures


def test_the_most_frequent_reasons_come_first_and_the_others_are_counted() -> None:
    output = io.StringIO()
    failures = {f"reason {letter} [red]": number for number, letter in enumerate("abcdefg", 1)}
    print_failures("live", failures, Console(file=output, width=20))
    assert output.getvalue().splitlines() == [
        *(
            f"live: {number} requests failed: reason {letter} [red]"
            for number, letter in zip(range(7, 2, -1), "gfedc", strict=True)
        ),
        "live: 3 requests failed for 2 other reasons",
    ]


def test_reasons_that_differ_in_their_numbers_are_one() -> None:
    output = io.StringIO()
    print_failures("live", {"a prompt of 31 tokens": 2, "a prompt of 7 tokens": 3}, Console(file=output))
    assert output.getvalue() == "live: 5 requests failed: a prompt of 31 tokens\n"


def test_nothing_is_told_where_none_failed() -> None:
    output = io.StringIO()
    print_failures("live", {}, Console(file=output))
    assert output.getvalue() == ""
