"""What a name may have meant when a request came, and which version its answer is of. Does no input or output."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest


class Verdict(StrEnum):
    """What an answer is."""

    WHOLE = "whole"
    """All of it of a version that the name meant while the request was there."""
    STALE = "stale"
    """All of it of a version, but one that was replaced before the request came, or registered after it had ended."""
    MIXED = "mixed"
    """Of no single version."""
    FAILED = "failed"
    """None came."""


@dataclass(slots=True)
class Version:
    """Times are of the client's clock."""

    answer: str
    #: When its registration was sent: the name may mean it from then on.
    began_s: float
    #: When that was answered: from then on the name can't mean an older one.
    registered_s: float = math.inf


class History:
    """The versions of one name, oldest first."""

    def __init__(self, *versions: Version) -> None:
        self._versions = [*versions]

    @classmethod
    def unchanging(cls, answer: str) -> "History":
        return cls(Version(answer, -math.inf, -math.inf))

    def begin(self, answer: str, now_s: float) -> Version:
        """A registration is sent; the caller notes on the version when it was answered."""
        self._versions.append(Version(answer, now_s))
        return self._versions[-1]

    def judge(self, text: str, sent_s: float, ended_s: float) -> Verdict:
        if text in self._meant(sent_s, ended_s):
            return Verdict.WHOLE
        return Verdict.STALE if any(text == version.answer for version in self._versions) else Verdict.MIXED

    def _meant(self, sent_s: float, ended_s: float) -> Iterator[str]:
        """Answers of the versions that the name may have meant at some moment between the two."""
        for version, newer in zip_longest(self._versions, self._versions[1:]):
            if version.began_s <= ended_s and (newer is None or newer.registered_s >= sent_s):
                yield version.answer
