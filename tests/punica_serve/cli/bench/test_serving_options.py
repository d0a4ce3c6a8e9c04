"""Options of `punica-serve bench serving` that are refused before anything runs."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--requests", "8,0"), "`--requests` is '8,0'; give a number of requests, or one for each workload"),
        (("--requests", "9" * 5000), "give a number of requests, or one for each workload"),
        (("--slo", "nan", "50"), "`--slo` is nan 50; both must be above 0 ms"),
        (("--slo", "500", "-1"), "`--slo` is 500 -1; both must be above 0 ms"),
        (("--requests", "8,9"), "`--requests` has 2 numbers for 1 workload; give one, or one for each"),
        (("--requests", "8", "--populations", "all"), "`--populations` names 'all'; there are distinct, skewed, base"),
        (("--apis", "engine", "--rate", "5"), "runs a closed loop on an engine of its own; leave `--rate` out"),
        (("--apis", "http,engine"), "compares a cluster with one engine, but `runner.devices` has 2 workers; name"),
    ],
)
def test_a_wrong_option_is_named(cli: Callable[..., Any], options: tuple[str, ...], message: str) -> None:
    outcome = cli("bench", "serving", "--config", "demo", "--workloads", "ours", *options)
    assert outcome.exit_code != 0 and message in outcome.stderr
