"""The versions that a name may have meant during a request, and the one that its answer is from. Does no input or
output.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest


class Verdict(StrEnum):
    """The judgement of an answer."""

    WHOLE = "whole"
    """Entirely from a version that the name meant during the request."""
    STALE = "stale"
    """Entirely from one version, but one that was replaced before the request or registered after it."""
    MIXED = "mixed"
    """Not from any single version."""
    FAILED = "failed"
    """There was no answer."""


@dataclass(slots=True)
class Version:
    """One version. Times are by the client's clock."""

    answer: str
    #: When its registration was sent: from then on the name may mean it.
    began_s: float
    #: When the registration was answered: from then on the name can't mean an older one.
    registered_s: float = math.inf


class VersionHistory:
    """The versions of one name, oldest first."""

    def __init__(self, *versions: Version) -> None:
        self._versions = [*versions]

    @classmethod
    def unchanging(cls, answer: str) -> "VersionHistory":
        return cls(Version(answer, -math.inf, -math.inf))

    def begin(self, answer: str, now_s: float) -> Version:
        """Records that a registration was sent; the caller sets on the version when it was answered."""
        self._versions.append(Version(answer, now_s))
        return self._versions[-1]

    def judge(self, text: str, sent_s: float, ended_s: float) -> Verdict:
        if text in self._meant(sent_s, ended_s):
            return Verdict.WHOLE
        return Verdict.STALE if any(text == version.answer for version in self._versions) else Verdict.MIXED

    def _meant(self, sent_s: float, ended_s: float) -> Iterator[str]:
        """Answers of the versions that the name may have meant at some time between the two."""
        for version, newer in zip_longest(self._versions, self._versions[1:]):
            if version.began_s <= ended_s and (newer is None or newer.registered_s >= sent_s):
                yield version.answer
