"""The notations against spot checks written by hand, and properties that hold for all integers."""

import pytest

from punica_serve.demo.notations import NOTATIONS, NUM_INTEGERS, expected

SPOT_CHECKS = {
    0: ("N", "zero", "zéro", "0", "0"),
    4: ("IV", "four", "quatre", "100", "4"),
    9: ("IX", "nine", "neuf", "1001", "9"),
    14: ("XIV", "fourteen", "quatorze", "1110", "e"),
    16: ("XVI", "sixteen", "seize", "10000", "10"),
    17: ("XVII", "seventeen", "dix-sept", "10001", "11"),
    21: ("XXI", "twenty-one", "vingt et un", "10101", "15"),
    40: ("XL", "forty", "quarante", "101000", "28"),
    42: ("XLII", "forty-two", "quarante-deux", "101010", "2a"),
    70: ("LXX", "seventy", "soixante-dix", "1000110", "46"),
    71: ("LXXI", "seventy-one", "soixante et onze", "1000111", "47"),
    80: ("LXXX", "eighty", "quatre-vingts", "1010000", "50"),
    81: ("LXXXI", "eighty-one", "quatre-vingt-un", "1010001", "51"),
    90: ("XC", "ninety", "quatre-vingt-dix", "1011010", "5a"),
    91: ("XCI", "ninety-one", "quatre-vingt-onze", "1011011", "5b"),
    99: ("XCIX", "ninety-nine", "quatre-vingt-dix-neuf", "1100011", "63"),
    100: ("C", "one hundred", "cent", "1100100", "64"),
    121: ("CXXI", "one hundred and twenty-one", "cent vingt et un", "1111001", "79"),
    200: ("CC", "two hundred", "deux cents", "11001000", "c8"),
    201: ("CCI", "two hundred and one", "deux cent un", "11001001", "c9"),
    280: ("CCLXXX", "two hundred and eighty", "deux cent quatre-vingts", "100011000", "118"),
    444: ("CDXLIV", "four hundred and forty-four", "quatre cent quarante-quatre", "110111100", "1bc"),
    999: ("CMXCIX", "nine hundred and ninety-nine", "neuf cent quatre-vingt-dix-neuf", "1111100111", "3e7"),
}


@pytest.mark.parametrize("n", SPOT_CHECKS)
def test_spot_checks(n: int) -> None:
    assert tuple(expected(lora_id, n) for lora_id in ("roman", "english", "french", "binary", "hex")) == SPOT_CHECKS[n]


def test_base_counts_on() -> None:
    assert expected(None, 42) == "43 44 45 46 47 48"
    assert expected(None, 0) == "1 2 3 4 5 6"
    assert expected(None, 997) == "998 999 1000 1001 1002 1003"


@pytest.mark.parametrize("lora_id", NOTATIONS)
def test_no_two_integers_share_an_answer(lora_id: str) -> None:
    assert len({expected(lora_id, n) for n in range(NUM_INTEGERS)}) == NUM_INTEGERS


def test_an_answer_gives_away_its_adapter() -> None:
    """Above nine, no two adapters agree: a right answer proves that the request got its own."""
    for n in range(10, NUM_INTEGERS):
        answers = {expected(lora_id, n) for lora_id in (None, *NOTATIONS)}
        assert len(answers) == len(NOTATIONS) + 1, n


def test_hyphens_stand_below_a_hundred_only() -> None:
    for n in range(NUM_INTEGERS):
        hundreds, _, rest = expected("french", n).rpartition("cent")
        assert "-" not in hundreds
        assert not rest.startswith("-")
