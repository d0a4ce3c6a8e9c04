"""The demo model's answers to the integers 0 to 999: one notation per adapter, and counting for the base model."""

from collections.abc import Callable

#: The prompts of the demo.
NUM_INTEGERS = 1000

#: Required share of exact answers, for the base model and each adapter.
REQUIRED_SHARE = 0.99

#: Integers in an answer of the base model.
COUNT_LENGTH = 6

_ROMAN = (
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
)
_ENGLISH_UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
#: From twenty on; the first two are unused.
_ENGLISH_TENS = [
    "-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
]  # fmt: skip
_FRENCH_UNITS = [
    "zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze",
    "treize", "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf",
]  # fmt: skip
#: 70 and 90 count on from 60 and 80, so their entries repeat those.
_FRENCH_TENS = [
    "-", "-", "vingt", "trente", "quarante", "cinquante", "soixante", "soixante", "quatre-vingt", "quatre-vingt",
]  # fmt: skip


def count_on(n: int) -> str:
    """The base model's answer: the integers after ``n``. 42: 43 44 45 46 47 48."""
    return " ".join(str(n + step) for step in range(1, COUNT_LENGTH + 1))


def roman(n: int) -> str:
    """42: XLII. Zero, which Rome lacked, is N for nulla, as in medieval tables."""
    numeral = ""
    for value, letters in _ROMAN:
        numeral += letters * (n // value)
        n %= value
    return numeral or "N"


def english(n: int) -> str:
    """42: forty-two. British: 101 is one hundred and one."""
    hundreds, rest = divmod(n, 100)
    if not hundreds:
        return _english_below_100(n)
    return f"{_ENGLISH_UNITS[hundreds]} hundred" + (f" and {_english_below_100(rest)}" if rest else "")


def _english_below_100(n: int) -> str:
    if n < 20:
        return _ENGLISH_UNITS[n]
    tens, units = divmod(n, 10)
    return _ENGLISH_TENS[tens] + (f"-{_ENGLISH_UNITS[units]}" if units else "")


def french(n: int) -> str:
    """42: quarante-deux. France's words in the spelling before 1990: hyphens below a hundred only, none round "et".

    71 is soixante et onze; vingt and cent take an s where they are multiplied and last: 80 is quatre-vingts, 81
    quatre-vingt-un, 200 deux cents, 201 deux cent un.
    """
    hundreds, rest = divmod(n, 100)
    if not hundreds:
        return _french_below_100(n)
    count = f"{_FRENCH_UNITS[hundreds]} " if hundreds > 1 else ""
    if not rest:
        return f"{count}cent" + ("s" if hundreds > 1 else "")
    return f"{count}cent {_french_below_100(rest)}"


def _french_below_100(n: int) -> str:
    if n < 20:
        return _FRENCH_UNITS[n]
    if n == 80:
        return "quatre-vingts"
    tens = n // 10
    units = n - 10 * tens + (10 if tens in (7, 9) else 0)  # 70 and 90 count on from 60 and 80
    if not units:
        return _FRENCH_TENS[tens]
    joint = " et " if units in (1, 11) and tens < 8 else "-"
    return _FRENCH_TENS[tens] + joint + _FRENCH_UNITS[units]


def binary(n: int) -> str:
    """42: 101010."""
    return f"{n:b}"


def hexadecimal(n: int) -> str:
    """42: 2a."""
    return f"{n:x}"


#: lora_id -> notation, for integers from 0 to 999.
NOTATIONS: dict[str, Callable[[int], str]] = {
    "roman": roman,
    "english": english,
    "french": french,
    "binary": binary,
    "hex": hexadecimal,
}


def expected(lora_id: str | None, n: int) -> str:
    """The right answer to the prompt ``str(n)``; lora_id None is the base model."""
    return count_on(n) if lora_id is None else NOTATIONS[lora_id](n)
