"""The times of a request's hops, from its trace and its client's own times. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from punica_serve.bench.hops.otlp_collector import ReceivedSpan

#: The spans of a request that was placed once.
SPANS = ("request", "queue", "assignment", "prefill", "decode")

#: The hops of a request, in order, and what each of them includes.
HOPS = {
    "client to frontend": "HTTP head and body, JSON, validation, registry lookup",
    "frontend to scheduler": "tokenization, plan, link",
    "scheduler": "arrival to placement",
    "scheduler to worker": "link, supervisor, pipe, the end of a step",
    "prefill": "admission, step, its tokens' commit",
    "worker to frontend": "pipe, supervisor, link, scheduler, link",
    "frontend to client": "text, event, HTTP chunk",
    "to the first token": "all of the above but the prefill",
    "last token to client": "as a first token, and the end of the answer",
    "client": "from an answer to its next request",
    "a freed place": "from a last token to the next request at the worker",
    "launch lead": "before the device is idle the next step is launched",
    "launched early": "from the launch behind a prefill's step to that step's end; 0: the device was idle",
}

#: A prefill's attributes that have times, in µs.
_ATTRIBUTES = {"punica.launch_lead_us": "launch lead", "punica.launched_early_us": "launched early"}
#: Before the number of another rank of a group, for its own time of the same.
_RANK = ".rank_"


@dataclass(frozen=True, slots=True)
class ClientTimes:
    """A request's times at its client, in nanoseconds since 1970."""

    trace_id: str
    sent_ns: int
    first_token_ns: int
    ended_ns: int


def by_trace(spans: Iterable[ReceivedSpan]) -> dict[str, dict[str, ReceivedSpan]]:
    """The spans of each trace, by name."""
    traces: dict[str, dict[str, ReceivedSpan]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, {})[span.name] = span
    return traces


def is_whole(trace: Mapping[str, ReceivedSpan]) -> bool:
    """Whether all spans of a request have come."""
    return all(name in trace for name in SPANS)


def hop_times_s(
    clients: Sequence[Sequence[ClientTimes]], traces: Mapping[str, Mapping[str, ReceivedSpan]]
) -> dict[str, list[float]]:
    """Seconds of each hop, for all requests of each client in their order; every trace must be whole."""
    times: dict[str, list[float]] = {hop: [] for hop in HOPS}
    for requests in clients:
        for number, request in enumerate(requests):
            trace = traces[request.trace_id]
            for hop, start_ns, end_ns in _first_token_hops(request, trace):
                times[hop].append(1e-9 * (end_ns - start_ns))
            total_ns = request.first_token_ns - request.sent_ns
            prefill = trace["prefill"]
            for attribute, value in prefill.attributes.items():
                if (launch := _launch_hop(attribute)) is not None:
                    times.setdefault(launch, []).append(1e-6 * float(value))
            times["to the first token"].append(1e-9 * (total_ns - (prefill.end_ns - prefill.start_ns)))
            if number + 1 < len(requests):
                _add_freed_place(times, request, trace, requests[number + 1], traces)
    return times


def includes(hop: str) -> str:
    """Describes a hop. A hop of another rank includes the same as its leader's."""
    return HOPS[hop.partition(",")[0]]


def _launch_hop(attribute: str) -> str | None:
    """The hop of a prefill's attribute, if it has a time."""
    name, _, rank = attribute.partition(_RANK)
    hop = _ATTRIBUTES.get(name)
    return f"{hop}, rank {rank}" if hop and rank else hop


def _first_token_hops(request: ClientTimes, trace: Mapping[str, ReceivedSpan]) -> list[tuple[str, int, int]]:
    """Each hop with its start and end: one begins where the hop before it ends."""
    first_token_ns = next(at_ns for name, at_ns in trace["request"].events if name == "first token")
    ends_ns = (
        request.sent_ns,
        trace["request"].start_ns,
        trace["queue"].start_ns,
        trace["assignment"].start_ns,
        trace["prefill"].start_ns,
        trace["prefill"].end_ns,
        first_token_ns,
        request.first_token_ns,
    )
    return [(hop, *pair) for hop, pair in zip(HOPS, pairwise(ends_ns), strict=False)]


def _add_freed_place(
    times: dict[str, list[float]],
    request: ClientTimes,
    trace: Mapping[str, ReceivedSpan],
    following: ClientTimes,
    traces: Mapping[str, Mapping[str, ReceivedSpan]],
) -> None:
    last_token_ns, next_start_ns = trace["decode"].end_ns, traces[following.trace_id]["prefill"].start_ns
    times["last token to client"].append(1e-9 * (request.ended_ns - last_token_ns))
    times["client"].append(1e-9 * (following.sent_ns - request.ended_ns))
    times["a freed place"].append(1e-9 * (next_start_ns - last_token_ns))
