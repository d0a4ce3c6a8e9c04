import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from up_cluster import Start, WaitUntil


@pytest.mark.slow
def test_one_id_is_followed_through_all_processes(run_demo: Start, wait_until: WaitUntil) -> None:
    with run_demo(log={"format": "json"}, log_level="debug") as cluster:
        answer = httpx.post(
            f"{cluster.url}/v1/generate",
            json={"prompt": "42", "lora_id": "roman"},
            headers={"X-Request-Id": "follow-me"},
            timeout=60,
            trust_env=False,
        )
        assert answer.headers["x-request-id"] == "follow-me"
        # Each process writes when it comes to it; this one comes last.
        wait_until(lambda: any(line["message"] == "request ended" for line in _lines_about(cluster.log, "follow-me")))
        lines = _lines_about(cluster.log, "follow-me")
        gpu = next(line["gpu"] for line in lines if line["message"] == "request placed")
        assert {(line["process"].split()[0], line["message"]) for line in lines} >= {
            ("frontend", "request added"),
            ("scheduler", "request arrived"),
            ("scheduler", "request placed"),
            ("runner", "request passed on"),
            ("worker", "request started"),
            ("frontend", "request ended"),
        }
        assert all(line["gpu"] == gpu for line in lines if line["process"].split()[0] in ("runner", "worker"))
        (end,) = [line for line in lines if line["message"] == "request ended"]
        assert (end["outcome"], end["adapter"], end["tokens"]) == (
            "stop",
            "shared/roman",
            len(answer.json()["token_ids"]),
        )


def _lines_about(log: Path, request_id: str) -> list[dict[str, Any]]:
    whole_lines = log.read_text().split("\n")[:-1]  # the last one may be half written
    lines = [json.loads(line) for line in whole_lines if line.startswith("{")]
    return [line for line in lines if line.get("request_id", "").startswith(request_id)]
