import logging

import pytest

from punica_frontend.api.caller import Caller
from punica_frontend.tenancy import meter as meter_module
from punica_frontend.tenancy.meter import BilledPrompt, Meter
from punica_serve.protocol import AdapterRef
from punica_serve.registry.records import AdapterVersion, Usage

ROMAN = AdapterVersion("acme", "acme", "roman", 3, AdapterRef("d", "/d", 1, {}), None, None, None, False, 0.0)


def caller(tenant: str) -> Caller:
    return Caller(f"{tenant}-1", tenant, "user")


class Clock:
    def __init__(self) -> None:
        self.now_s = 7200.0

    def __call__(self) -> float:
        return self.now_s


def test_a_request_and_its_prompt_count_with_its_first_tokens() -> None:
    meter = Meter(Clock())
    charge = meter.begin(caller("acme"), ROMAN, BilledPrompt(5))
    charge.add_tokens(0)
    assert meter.take() == []
    charge.add_tokens(2, 2)
    charge.add_tokens(1, 2)
    assert meter.take() == [Usage(7200, "acme-1", "acme", "acme", "acme/roman", 3, 1, 5, 2, 3, 0.0)]
    charge.add_tokens(1)
    charge.add_gpu_time(0.25)
    assert meter.take() == [Usage(7200, "acme-1", "acme", "acme", "acme/roman", 3, 0, 0, 0, 1, 0.25)]
    assert meter.take() == []


def test_tenants_adapters_versions_and_hours_are_counted_apart() -> None:
    clock = Clock()
    meter = Meter(clock)
    for tenant, adapter in (("acme", ROMAN), ("bolt", ROMAN), ("acme", None)):
        meter.begin(caller(tenant), adapter, BilledPrompt(1)).add_tokens(1)
    meter.begin(caller("acme"), ROMAN, BilledPrompt(1)).add_tokens(1)
    clock.now_s += 3600
    meter.begin(caller("acme"), None, BilledPrompt(1)).add_tokens(1)
    counted = {(row.hour_s, row.tenant, row.adapter, row.version): row.num_requests for row in meter.take()}
    assert counted == {
        (7200, "acme", "acme/roman", 3): 2,
        (7200, "bolt", "acme/roman", 3): 1,
        (7200, "acme", None, None): 1,
        (10800, "acme", None, None): 1,
    }


def test_waiting_counts_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(meter_module, "MAX_WAITING", 2)
    meter = Meter(Clock())
    with caplog.at_level(logging.ERROR):
        for tenant in "abcd":
            meter.begin(caller(tenant), None, BilledPrompt(1)).add_tokens(1)
        meter.begin(caller("a"), None, BilledPrompt(1)).add_tokens(1)
    assert [(row.tenant, row.num_requests) for row in meter.take()] == [("a", 2), ("b", 1)]
    assert len(caplog.records) == 1 and "further usage is lost" in caplog.text
    meter.begin(caller("c"), None, BilledPrompt(1)).add_tokens(1)
    assert [row.tenant for row in meter.take()] == ["c"]


def test_the_prompt_of_several_choices_counts_once_with_whichever_comes_first() -> None:
    meter = Meter(Clock())
    prompt = BilledPrompt(5)
    charges = [meter.begin(caller("acme"), ROMAN, prompt) for _ in range(3)]
    for charge in reversed(charges[1:]):
        charge.add_tokens(2)
        charge.add_tokens(2)
    (row,) = meter.take()
    assert (row.num_requests, row.num_prompt_tokens, row.num_generated_tokens) == (2, 5, 8)
    charges[0].add_tokens(1, 5)
    (row,) = meter.take()
    assert (row.num_requests, row.num_prompt_tokens, row.num_cached_tokens, row.num_generated_tokens) == (1, 0, 0, 1)


def test_a_later_tenant_of_the_same_name_is_counted_apart() -> None:
    meter = Meter(Clock())
    for tenant_id in ("acme-1", "acme-2", "acme-1"):
        meter.begin(Caller(tenant_id, "acme", "user"), None, BilledPrompt(1)).add_tokens(1)
    assert [(row.tenant_id, row.tenant, row.num_requests) for row in meter.take()] == [
        ("acme-1", "acme", 2),
        ("acme-2", "acme", 1),
    ]
