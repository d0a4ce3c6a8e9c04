"""Clients that others wrote, against the whole cluster. Each is a script that asserts what its client understands."""

import sys
from pathlib import Path

import pytest

from keyed_cluster import KeyedCluster

#: Those that our own environment has too, in newer versions than the other clients go with.
IN_BOTH = ["ask_openai.py", "ask_huggingface_hub.py"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [*IN_BOTH, "ask_text_generation.py", "ask_lorax.py", "ask_litellm.py", "ask_langchain.py"]
)
def test_a_client(keyed_cluster: KeyedCluster, clients_python: Path, script: str) -> None:
    keyed_cluster.run(script, clients_python)


@pytest.mark.slow
@pytest.mark.parametrize("script", IN_BOTH)
def test_a_client_of_our_own_environment(keyed_cluster: KeyedCluster, script: str) -> None:
    keyed_cluster.run(script, Path(sys.executable))


@pytest.mark.slow
def test_instructor(keyed_cluster: KeyedCluster, clients_python: Path) -> None:
    """The demo model writes no JSON, so what it answers is refused by the schema, after each try over again."""
    assert keyed_cluster.run("ask_instructor.py", clients_python)["num_tries"] == 2


@pytest.mark.slow
def test_guidellm(keyed_cluster: KeyedCluster, clients_python: Path, tmp_path: Path) -> None:
    told = keyed_cluster.run("ask_guidellm.py", clients_python, str(tmp_path))
    for totals in told["requests"].values():
        assert totals == {"successful": 20, "errored": 0, "incomplete": 0, "total": 20}
    assert told["output_tokens"] == {"/v1/completions": 16, "/v1/chat/completions": 16}
