"""Where the time of first tokens went, and in which of these phases the others' gaps between tokens were.

A request waits for the step loop to take it, then for each phase of its adapter's load (``LoadPhase``), then for a step
that it may join, and for that step. All times are of ``time.perf_counter``, in seconds.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace

TAKING = "waiting for the step loop to take it"
JOINING = "waiting for a step that it may join"
PREFILL = "the step of its prefill"
#: A phase of gaps alone: no request of the stream was on its way.
NOTHING = "no arrival"

#: All phases in their order. The copy of the rest goes on beside the last two.
PHASES: tuple[str, ...] = (
    TAKING,
    *(phase.value for phase in LoadPhase if phase is not LoadPhase.COPYING),
    JOINING,
    PREFILL,
)


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of one request's way to its first token."""

    phase: str
    start_s: float
    end_s: float

    def overlap_s(self, start_s: float, end_s: float) -> float:
        return max(0.0, min(self.end_s, end_s) - max(self.start_s, start_s))


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A request of the stream, from the time when it was due to its first token."""

    due_s: float
    #: The engine was given the request.
    added_s: float
    #: The device began the step of its prefill.
    begun_s: float
    token_s: float
    #: None if its adapter was on the device.
    trace: LoadTrace | None

    @property
    def spans(self) -> tuple[PhaseSpan, ...]:
        """Its phases, one after the other."""
        spans, start_s = [PhaseSpan(TAKING, self.due_s, self.added_s)], self.added_s
        for span in self.trace.spans if self.trace is not None else ():
            if span.phase is not LoadPhase.COPYING:
                spans.append(PhaseSpan(span.phase.value, start_s, max(start_s, span.end_s)))
                start_s = spans[-1].end_s
        begun_s = max(start_s, self.begun_s)
        return (*spans, PhaseSpan(JOINING, start_s, begun_s), PhaseSpan(PREFILL, begun_s, self.token_s))


@dataclass(frozen=True, slots=True)
class StepGap:
    """The time between two tokens of all requests that decode."""

    start_s: float
    end_s: float
    #: Prompt tokens in the step that ended it.
    num_prefill_tokens: int
    #: The device had no step then: the next was launched late.
    idle_s: float
    #: Time of the step loop's thread: on a core, and ready without one.
    core_s: float
    no_core_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def phase_times_s(tokens: Iterable[FirstToken]) -> dict[str, list[float]]:
    """The length of each phase for each request, 0 for one that skipped it; no phase that all have skipped."""
    lengths_s = [{span.phase: span.end_s - span.start_s for span in token.spans} for token in tokens]
    return {
        phase: [each.get(phase, 0.0) for each in lengths_s]
        for phase in PHASES
        if any(phase in each for each in lengths_s)
    }


class PhaseTimeline:
    """The phases of all requests of a stream, to be asked for times."""

    def __init__(self, tokens: Iterable[FirstToken]) -> None:
        self._spans = sorted((span for token in tokens for span in token.spans), key=lambda span: span.start_s)
        self._starts_s = [span.start_s for span in self._spans]
        #: The latest end of each span and those before it.
        self._latest_ends_s = list(accumulate((span.end_s for span in self._spans), max))

    def phase_of(self, gap: StepGap) -> str:
        """The phase that took most of a gap; ``NOTHING`` if phases took less than half of it."""
        first = bisect_right(self._latest_ends_s, gap.start_s)
        last = bisect_left(self._starts_s, gap.end_s)
        taken_s: dict[str, float] = defaultdict(float)
        for span in self._spans[first:last]:
            taken_s[span.phase] += span.overlap_s(gap.start_s, gap.end_s)
        if sum(taken_s.values()) < gap.seconds / 2:
            return NOTHING
        return max(taken_s, key=lambda phase: taken_s[phase])

    def sort(self, gaps: Iterable[StepGap]) -> dict[str, list[StepGap]]:
        """All gaps by their phases."""
        found: dict[str, list[StepGap]] = {phase: [] for phase in (*PHASES, NOTHING)}
        for gap in gaps:
            found[self.phase_of(gap)].append(gap)
        return found
