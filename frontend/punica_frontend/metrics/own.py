"""What a frontend knows by itself."""

from collections.abc import Iterator

from punica_frontend.metrics import catalogue
from punica_frontend.metrics.busiest import Busiest
from punica_frontend.metrics.figures import Figures, Use
from punica_frontend.metrics.text import NO_LABELS, Labels, Metric, family, joined, labelled
from punica_serve.protocol import FinishReason

#: A finish reason -> vLLM's word for it. What else a request may end with is the code of an error.
_FINISHED: dict[FinishReason, str] = {"stop": "stop", "length": "length", "cancelled": "abort"}


def own_lines(figures: Figures, model: str, *, is_connected: bool, is_draining: bool) -> Iterator[str]:
    """``model`` is what the API calls the base model."""
    of_model = labelled(model_name=model)
    yield from _requests(figures, of_model)
    failed = [(code, count) for code, count in sorted(figures.num_ended.items()) if code not in _FINISHED]
    yield from family(catalogue.FAILED, [(labelled(code=code), count) for code, count in failed])
    cut = sorted(figures.num_cut.items())
    yield from family(catalogue.CUT, [(labelled(reason=reason), count) for reason, count in cut])
    for metric, value in (
        (catalogue.WEBSOCKETS, figures.num_websockets),
        (catalogue.CONNECTED, is_connected),
        (catalogue.DRAINING, is_draining),
    ):
        yield from family(metric, [(NO_LABELS, value)])
    yield from _uses(catalogue.ADAPTER, figures.adapters)
    yield from _uses(catalogue.TENANT, figures.tenants)


def _requests(figures: Figures, of_model: Labels) -> Iterator[str]:
    for metric, value in (
        (catalogue.RUNNING, figures.num_running),
        (catalogue.WAITING, figures.num_waiting),
        (catalogue.PROMPT_TOKENS, figures.num_prompt_tokens),
        (catalogue.GENERATION_TOKENS, figures.num_generated_tokens),
        (catalogue.PREEMPTIONS, figures.num_evictions),
        (catalogue.FIRST_TOKEN, figures.first_token_s),
        (catalogue.INTER_TOKEN, figures.inter_token_s),
        (catalogue.E2E, figures.request_s),
        (catalogue.QUEUE_TIME, figures.queue_s),
        (catalogue.REQUEST_PROMPT, figures.prompt_tokens),
        (catalogue.REQUEST_GENERATION, figures.generated_tokens),
    ):
        yield from family(metric, [(of_model, value)])
    ended = [(reason, figures.num_ended[outcome]) for outcome, reason in _FINISHED.items()]
    samples = [(joined(of_model, labelled(finished_reason=reason)), count) for reason, count in ended]
    yield from family(catalogue.SUCCESS, samples)


def _uses(metrics: tuple[Metric, ...], busiest: Busiest[Use]) -> Iterator[str]:
    rows = [
        (
            labelled(**{metrics[0].labels[0]: name}),
            (
                use.num_requests,
                use.num_prompt_tokens,
                use.num_generated_tokens,
                use.first_token_s,
                use.token_s,
            ),
        )
        for name, use in busiest.items()
    ]
    for index, metric in enumerate(metrics):
        yield from family(metric, [(labels, values[index]) for labels, values in rows])
