"""The tables of docs/metrics.md: `python -m punica_frontend.metrics.table docs/metrics.md` updates them."""

import sys
from collections.abc import Iterable
from pathlib import Path

from punica_frontend.metrics import catalogue
from punica_frontend.metrics.text import Metric

_BEGIN, _END = "<!-- {}: made from the code -->\n", "<!-- end of {} -->\n"


def tables(page: str) -> str:
    """Returns the page with its tables updated."""
    for title, metrics in (("own", catalogue.OWN), ("cluster", catalogue.CLUSTER)):
        before, begin, rest = page.partition(_BEGIN.format(title))
        _, end, after = rest.partition(_END.format(title))
        page = f"{before}{begin}\n{_table(metrics)}\n{end}{after}"
    return page


def _table(metrics: Iterable[Metric]) -> str:
    rows = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "".join(f"{row}\n" for row in rows)


def main() -> None:
    path = Path(sys.argv[1])
    path.write_text(tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
