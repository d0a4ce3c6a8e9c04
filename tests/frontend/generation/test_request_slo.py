import pytest

from punica_frontend.generation.request_slo import promised
from punica_serve.errors import InvalidRequest
from punica_serve.protocol import NO_SLO, Limits, Slo

LIMITS = Limits(1, least_first_token_s=0.02, least_time_per_token_s=0.005)


def test_a_request_without_promises_gets_its_tenants() -> None:
    assert promised(None, Slo(1.0, 0.1), None) == Slo(1.0, 0.1)
    assert promised(None, NO_SLO, LIMITS) is None


def test_a_requests_own_promises_win_one_by_one() -> None:
    assert promised(Slo(0.5), Slo(1.0, 0.1), LIMITS) == Slo(0.5, 0.1)
    assert promised(Slo(None, 0.2), Slo(1.0, 0.1), LIMITS) == Slo(1.0, 0.2)


def test_what_an_idle_gpu_just_keeps_can_be_promised() -> None:
    assert promised(Slo(0.02, 0.005), NO_SLO, LIMITS) == Slo(0.02, 0.005)


@pytest.mark.parametrize(
    ("slo", "param", "figure"),
    [
        (Slo(0.0199), "slo.first_token_s", "`slo.first_token_s` is 0.0199, but an idle GPU needs 0.02 s"),
        (Slo(1.0, 0.0049), "slo.time_per_token_s", "`slo.time_per_token_s` is 0.0049, but an idle GPU needs 0.005 s"),
    ],
)
def test_what_no_idle_gpu_keeps_is_refused_with_the_figure(slo: Slo, param: str, figure: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        promised(slo, NO_SLO, LIMITS)
    assert refused.value.param == param and refused.value.message.startswith(figure)
    assert promised(slo, NO_SLO, None) == slo, "without a scheduler nobody knows"


def test_a_tenants_promise_may_be_one_that_no_gpu_keeps() -> None:
    assert promised(None, Slo(0.001, 0.001), LIMITS) == Slo(0.001, 0.001)
