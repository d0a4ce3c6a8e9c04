"""The frontend's own metrics."""

from collections.abc import Iterable, Iterator

from msgspec.structs import asdict

from punica_frontend.metrics import catalogue
from punica_frontend.metrics.metrics import Metrics, UsageStats
from punica_frontend.metrics.text import NO_LABELS, Labels, Metric, family, joined, labelled
from punica_serve.protocol import FinishReason

#: vLLM's words for finish reasons. Other outcomes are error codes.
_FINISHED: dict[FinishReason, str] = {"stop": "stop", "length": "length", "cancelled": "abort"}


def own_lines(metrics: Metrics, model: str, *, is_connected: bool, is_draining: bool) -> Iterator[str]:
    """``model`` is the API's name for the base model."""
    of_model = labelled(model_name=model)
    yield from _requests(metrics, of_model)
    answers = [
        (labelled(handler=each.handler, method=each.method, status=each.status), count)
        for each, count in sorted(metrics.num_answers.items())
    ]
    yield from family(catalogue.HTTP_REQUESTS, answers)
    failed = [(code, count) for code, count in sorted(metrics.num_ended.items()) if code not in _FINISHED]
    yield from family(catalogue.FAILED, [(labelled(code=code), count) for code, count in failed])
    cut = sorted(metrics.num_cut.items())
    yield from family(catalogue.CUT, [(labelled(reason=reason), count) for reason, count in cut])
    unknown = [
        (labelled(field=name, outcome=outcome), count)
        for name, counts in metrics.unknown_fields.items()
        for outcome, count in sorted(counts.items())
    ]
    yield from family(catalogue.UNKNOWN_FIELDS, unknown)
    for metric, value in (
        (catalogue.WEBSOCKETS, metrics.num_websockets),
        (catalogue.CONNECTED, is_connected),
        (catalogue.DRAINING, is_draining),
    ):
        yield from family(metric, [(NO_LABELS, value)])
    yield from _uses(catalogue.ADAPTER, metrics.adapters.items())
    yield from _uses(catalogue.TENANT, metrics.tenants.items())
    yield from family(catalogue.PROMISES, _promises(metrics))


def _promises(metrics: Metrics) -> Iterator[tuple[Labels, int]]:
    for tenant, stats in metrics.tenants.items():
        for name, count in asdict(stats.promises).items():
            promise, _, outcome = name.rpartition("_")
            yield labelled(tenant=tenant, promise=promise, outcome=outcome), count


def _requests(metrics: Metrics, of_model: Labels) -> Iterator[str]:
    for metric, value in (
        (catalogue.RUNNING, metrics.num_running),
        (catalogue.WAITING, metrics.num_waiting),
        (catalogue.PROMPT_TOKENS, metrics.num_prompt_tokens),
        (catalogue.GENERATION_TOKENS, metrics.num_generated_tokens),
        (catalogue.PREEMPTIONS, metrics.num_evictions),
        (catalogue.FIRST_TOKEN, metrics.first_token_s),
        (catalogue.INTER_TOKEN, metrics.inter_token_s),
        (catalogue.E2E, metrics.request_s),
        (catalogue.QUEUE_TIME, metrics.queue_s),
        (catalogue.PREFILL_TIME, metrics.prefill_s),
        (catalogue.DECODE_TIME, metrics.decode_s),
        (catalogue.INFERENCE_TIME, metrics.inference_s),
        (catalogue.TIME_PER_TOKEN, metrics.token_s),
        (catalogue.REQUEST_PROMPT, metrics.prompt_tokens),
        (catalogue.REQUEST_GENERATION, metrics.generated_tokens),
        (catalogue.PARAMS_N, metrics.num_choices),
        (catalogue.PARAMS_MAX_TOKENS, metrics.max_tokens),
    ):
        yield from family(metric, [(of_model, value)])
    ended = [(reason, metrics.num_ended[outcome]) for outcome, reason in _FINISHED.items()]
    samples = [(joined(of_model, labelled(finished_reason=reason)), count) for reason, count in ended]
    yield from family(catalogue.SUCCESS, samples)


def _uses(metrics: tuple[Metric, ...], stats: Iterable[tuple[str, UsageStats]]) -> Iterator[str]:
    rows = [
        (
            labelled(**{metrics[0].labels[0]: name}),
            (
                use.num_requests,
                use.num_prompt_tokens,
                use.num_cached_tokens,
                use.num_generated_tokens,
                use.first_token_s,
                use.token_s,
            ),
        )
        for name, use in stats
    ]
    for index, metric in enumerate(metrics):
        yield from family(metric, [(labels, values[index]) for labels, values in rows])
