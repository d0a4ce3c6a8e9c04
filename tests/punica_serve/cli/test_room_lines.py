"""The lines of `config check` about settings that are `auto`, and what limits them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(cli: Cli, write_config: Callable[..., Path]) -> Callable[..., list[str]]:
    """The lines about a 7B by the profile of an H200, with other settings of the engine."""

    def check(*options: str, **engine: Any) -> list[str]:
        engine = {"model": "shape:llama-2-7b", "tokenizer": "demo:model", "load_format": "dummy", **engine}
        file = write_config(engine=engine, scheduler={"profile": "h200-7b"}, runner={"devices": ["cuda:0"]})
        exit_code, stdout, stderr = cli("config", "check", str(file), *options)
        assert (exit_code, stderr) == (0, "")
        return stdout.splitlines()

    return check


Check = Callable[..., list[str]]


def test_auto_is_told_as_numbers_with_the_setting_that_limits_them(check: Check) -> None:
    lines = check(max_batch_size="auto")
    assert "requests in a step: 128, limited by target_step_ms; a GPU may have memory for fewer" in lines
    assert "adapters of rank 16 on a GPU at once: 128; it may have memory for fewer" in lines
    assert "adapters of rank 16 in host memory: 512, 38.12 GiB; a host may have memory for fewer" in lines


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"max_batch_size": 32}, "1, 512"),
        ({"max_batch_size": "auto"}, "4, 512"),
        ({"max_batch_size": 256, "prefill_budget_tokens": 2048}, "8, 2,048"),
        ({"max_batch_size": 256, "max_prefills": 3}, "3, 512"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--gpu", "h200"]])
def test_prompts_share_the_budget_of_a_step(
    check: Check, engine: dict[str, Any], expected: str, options: list[str]
) -> None:
    assert f"prompts in a step: {expected} tokens of them" in check(*options, **engine)


def test_the_steps_by_which_auto_chooses_are_told(check: Check) -> None:
    (line,) = [line for line in check(max_batch_size="auto") if line.startswith("decode steps by the profile")]
    assert line.startswith("decode steps by the profile, with 512 tokens of context and 100% distinct adapters: 32 req")
    assert line.count(" tokens/s") == 4
    assert not [line for line in check(max_batch_size=64) if line.startswith("decode steps")]


def test_on_a_known_gpu_memory_may_be_the_limit(check: Check) -> None:
    lines = check("--gpu", "h200", max_batch_size="auto")
    assert "requests in a step: 128, limited by target_step_ms" in lines
    assert "adapters of rank 16 on the GPU at once: 128" in lines
    lines = check("--gpu", "48000000000", max_batch_size="auto")
    assert "requests in a step: 64, limited by memory" in lines
    assert "adapters of rank 16 on the GPU at once: 64" in lines
    assert any(line.startswith("adapters of rank 16 in host memory: 256, ") for line in lines)


def test_a_given_batch_has_as_many_adapters_as_memory_allows(check: Check) -> None:
    lines = check("--gpu", "48000000000", max_batch_size=128)
    assert "requests in a step: 128" in lines
    assert "adapters of rank 16 on the GPU at once: 92, limited by memory" in lines


def test_numbers_are_told_as_the_adapters_that_they_hold(check: Check) -> None:
    lines = check(num_lora_pages=64, host_cache_bytes=1_000_000_000, expected_lora_rank=64)
    assert "adapters of rank 64 on a GPU at once: 8" in lines
    assert "adapters of rank 64 in host memory: 3, 953.7 MiB" in lines
