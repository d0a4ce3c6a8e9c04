import asyncio

import httpx
import pytest

from punica_serve.bench.hops.otlp_collector import ReceivedSpan, otlp_collector
from up_cluster import Start
from waits import until

TRACE_ID, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def ask(url: str, traceparent: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/generate",
        json={"prompt": "42", "lora_id": "roman"},
        headers={"traceparent": traceparent},
        timeout=60,
        trust_env=False,
    )


@pytest.mark.slow
async def test_a_trace_holds_all_processes_and_no_more_than_its_client_wants(run_demo: Start) -> None:
    with otlp_collector() as collector, run_demo(tracing={"otlp_endpoint": collector.url}) as cluster:
        assert (await asyncio.to_thread(ask, cluster.url, f"00-{TRACE_ID}-{CLIENT_SPAN}-01")).is_success
        assert (await asyncio.to_thread(ask, cluster.url, f"00-{'1' * 32}-{CLIENT_SPAN}-00")).is_success
        await until(lambda: len(collector.spans) >= 5, describe=lambda: collector.spans)
        check_tree(collector.spans)


def check_tree(spans: list[ReceivedSpan]) -> None:
    by_name = {span.name: span for span in spans}
    assert {span.trace_id for span in spans} == {TRACE_ID}
    assert {(span.process, span.name) for span in spans} == {
        ("punica-frontend", "request"),
        ("punica-scheduler", "queue"),
        ("punica-scheduler", "assignment"),
        ("punica-worker", "prefill"),
        ("punica-worker", "decode"),
    }
    parents = {span.name: span.parent_id for span in spans}
    assert parents == {
        "request": CLIENT_SPAN,
        "queue": by_name["request"].span_id,
        "assignment": by_name["request"].span_id,
        "prefill": by_name["assignment"].span_id,
        "decode": by_name["assignment"].span_id,
    }
    assert by_name["prefill"].end_ns == by_name["decode"].start_ns
    for name in ("punica.gpu", "punica.gpu_name"):
        assert by_name["assignment"].attributes[name] == by_name["decode"].attributes[name]
    assert [name for name, _ in by_name["request"].events] == ["first token"]


@pytest.mark.slow
def test_a_collector_that_is_down_harms_no_request(run_demo: Start) -> None:
    with run_demo(tracing={"otlp_endpoint": "http://127.0.0.1:1"}) as cluster:
        answers = [ask(cluster.url, "") for _ in range(20)]
        assert [answer.json()["text"] for answer in answers] == ["XLII"] * 20
