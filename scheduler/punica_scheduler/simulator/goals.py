"""A comparison of policies held against the goals of its config."""

from collections.abc import Iterator, Mapping

from punica_scheduler.simulator.comparison import faster_by
from punica_scheduler.simulator.summary import Check, Summary
from punica_serve.config.placement_name import PlacementName, label_of
from punica_serve.config.simulation_section import PolicyGoals

#: The policy whose GPU time and first tokens are the measure of the others'.
SPREADING: PlacementName = "most_idle"


def goal_checks(goals: Mapping[PlacementName, PolicyGoals], summaries: Mapping[str, Summary]) -> list[Check]:
    """A check for each goal whose policies were run. The summaries are by the labels of the policies."""
    labelled = {label_of(policy): own for policy, own in goals.items()}
    return [
        check
        for policy, own in labelled.items()
        if policy in summaries
        for check in _checks(policy, own, summaries[policy], summaries)
    ]


def _checks(policy: str, goals: PolicyGoals, own: Summary, summaries: Mapping[str, Summary]) -> Iterator[Check]:
    if goals.kept is not None and own.attained is not None:
        kept = own.attained.both
        yield Check(f"{policy} keeps at least {goals.kept:.0%} of its promises", f"{kept:.2%}", kept >= goals.kept)
    for other, least in goals.faster_than.items():
        if (other := label_of(other)) in summaries:
            share = faster_by(own, summaries[other])
            yield Check(f"{policy} is faster than {other} by at least {least:.0%}", f"{share:.1%}", share >= least)
    spread = summaries.get(SPREADING)
    if spread is None:
        return
    limits = (
        ("GPU time", goals.gpu_time, own.gpu_time_s, spread.gpu_time_s),
        ("p99 of the first token", goals.first_token_p99, own.first_token_p99_s, spread.first_token_p99_s),
    )
    for name, most, seconds, base_s in limits:
        if most is not None and base_s:
            ratio = seconds / base_s
            claim = f"{policy}'s {name} is at most {most:g} of {SPREADING}'s"
            yield Check(claim, f"{ratio:.2f}", ratio <= most)
