"""How long each fault was felt: a table for people, and the same as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Recovery:
    """One fault, seen by the clients whose streams were in flight."""

    fault: str
    num_streams: int
    #: From the fault until every stream had ended or was well past where it had been.
    all_go_on_s: float
    #: The longest that any of them stood still; None where no client was left to feel it.
    longest_stall_s: float | None


def table(recoveries: list[Recovery]) -> list[str]:
    """Lines of Markdown."""
    rows = [
        f"| {each.fault} | {each.num_streams} | {each.all_go_on_s:.1f} | {_stall(each.longest_stall_s)} |"
        for each in recoveries
    ]
    return ["| fault | streams | all go on after, s | longest stall, s |", "|---|---|---|---|", *rows]


def _stall(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def write(recoveries: list[Recovery], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(each) for each in recoveries], indent=2) + "\n")
