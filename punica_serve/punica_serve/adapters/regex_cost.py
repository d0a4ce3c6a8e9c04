"""How long a stranger's regular expression may take: decided from its form, before it is ever matched.

Python matches by trying one way after another, and holds the interpreter's lock meanwhile: `(a|aa)*b` on a module's
path would stop a whole process for hours. The number of ways is bounded from above here, by counting

- choices: each alternative and each optional part multiplies them, and repeating a choice is a power;
- spreads: k parts of any length, as in `.*`, share the path's characters in at most (length + k) over k ways.

The expressions that PEFT's users write, lists of names and a few `.*`, come to some thousands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Python's own parser, which is the only one to agree with it. Not public, and so not typed.
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

#: Ways that all expressions of one adapter may have together. A way takes some ten nanoseconds.
MAX_WAYS = 600_000

#: Characters of the longest path of a module.
_PATH_LENGTH = 48

_TOO_MANY = MAX_WAYS + 1


@dataclass(frozen=True, slots=True)
class _Ways:
    """In which part of an expression can match at one place: at most ``choices``, for each of its spreads."""

    choices: int = 1
    num_spreads: int = 0

    def then(self, other: "_Ways") -> "_Ways":
        return _Ways(min(self.choices * other.choices, _TOO_MANY), self.num_spreads + other.num_spreads)

    def total(self) -> int:
        return self.choices * math.comb(_PATH_LENGTH + self.num_spreads, self.num_spreads)


def num_ways(regex: str) -> int:
    """An upper bound of the ways in which a path can be matched; more than MAX_WAYS if it can't be bounded.

    Raises what re.compile raises.
    """
    tree = parser.parse(regex)
    if tree.state.flags & ~ops.SRE_FLAG_UNICODE:
        return _TOO_MANY  # ignoring case, for one, makes large sets of characters slow
    return _sequence(tree).total()


def _sequence(nodes: Any) -> _Ways:
    ways = _Ways()
    for op, argument in nodes:
        ways = ways.then(_node(op, argument))
    return ways


def _node(op: Any, argument: Any) -> _Ways:
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
        low, high, inner = argument
        return _repeated(_sequence(inner), low, min(high, _PATH_LENGTH))
    if op is ops.BRANCH:
        return _alternatives(argument[1])
    if op is ops.SUBPATTERN:
        _, set_flags, cleared_flags, inner = argument
        return _Ways(_TOO_MANY) if set_flags or cleared_flags else _sequence(inner)
    if op is ops.ATOMIC_GROUP:
        return _sequence(argument)
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        return _sequence(argument[1])
    if op is ops.GROUPREF_EXISTS:
        return _any_of([_sequence(branch) for branch in argument[1:] if branch])
    return _Ways()  # one character, one place, or what a group has matched


def _repeated(inner: _Ways, low: int, high: int) -> _Ways:
    if inner == _Ways():
        return inner if low >= high else _Ways(1, 1)
    num_repeats = range(min(low, high), high + 1)
    choices = sum(min(inner.choices, _TOO_MANY) ** count for count in num_repeats)
    return _Ways(min(choices, _TOO_MANY), inner.num_spreads * high)


def _alternatives(branches: Sequence[Any]) -> _Ways:
    texts = [text for branch in branches if (text := _literal(branch)) is not None]
    if len(texts) < len(branches):
        return _any_of([_sequence(branch) for branch in branches])
    # Of names, only those can match at one place of which one begins with the other.
    return _Ways(max(sum(text.startswith(start) for start in texts) for text in texts))


def _any_of(branches: list[_Ways]) -> _Ways:
    choices = sum(branch.choices for branch in branches)
    return _Ways(min(choices, _TOO_MANY), max((branch.num_spreads for branch in branches), default=0))


def _literal(nodes: Any) -> str | None:
    """The text of an expression that is nothing else."""
    if any(op is not ops.LITERAL for op, _ in nodes):
        return None
    return "".join(chr(code) for _, code in nodes)
