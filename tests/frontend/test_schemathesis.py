"""Requests inside and outside the OpenAPI page: answers are what the page says of them."""

from pathlib import Path

import pytest

from schemathesis_run import schemathesis


@pytest.mark.timeout(600)  # the tool's run has a deadline of its own, and says more
@pytest.mark.usefixtures("server")
async def test_no_answer_contradicts_the_page(address: str, tmp_path: Path) -> None:
    options = ("--phases", "examples,fuzzing", "--mode", "positive", "--max-examples", "3")
    exit_code, output = await schemathesis(f"http://{address}", tmp_path, *options)
    assert exit_code == 0, output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("server")
async def test_not_even_at_the_edges_of_what_it_says_and_beyond_them(address: str, tmp_path: Path) -> None:
    exit_code, output = await schemathesis(f"http://{address}", tmp_path, "--max-examples", "20")
    assert exit_code == 0, output
