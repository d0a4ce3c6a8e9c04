"""A group of ranks says what one rank says: all architectures, adapters of all ranks, all ways to sample."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mixed_batch import Answers, assert_same, serve, write_adapters
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.architectures import ARCHITECTURES
from punica_serve.base_model.config_json import read_model_config
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from thread_ranks import run_ranks

#: No multiple of the ranks, nor of the blocks in which tokens are divided.
VOCAB_SIZE = 99


@dataclass(frozen=True)
class Served:
    model: Path
    adapters: list[AdapterRef]
    answers: Answers


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def served(
    request: pytest.FixtureRequest, make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Served:
    """An architecture, and what one rank answers."""
    model = make_model(request.param, vocab_size=VOCAB_SIZE)
    adapters = write_adapters(tmp_path_factory.mktemp("adapters"), read_model_config(model))
    return Served(model, adapters, serve(model, adapters))


def check(served: Served, size: int, **settings: Any) -> None:
    for answers in run_ranks(size, lambda rank: serve(served.model, served.adapters, rank, **settings)):
        assert_same(answers, served.answers)


def test_two_ranks_say_what_one_says(served: Served) -> None:
    check(served, 2)


def test_so_do_two_that_divide_a(served: Served) -> None:
    check(served, 2, divide_lora_from=1)


@pytest.mark.slow
@pytest.mark.parametrize("divide_lora_from", [None, 16])
def test_four_ranks_say_what_one_says(served: Served, divide_lora_from: int | None) -> None:
    check(served, 4, divide_lora_from=divide_lora_from)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("divide_lora_from", [None, 1])
def test_each_module_alone_has_its_update_of_the_highest_rank(
    served: Served, tmp_path: Path, size: int, divide_lora_from: int | None
) -> None:
    """The head's too; some are activated by the last token of the prompt."""
    model = read_model_config(served.model)
    requests = []
    for number, module in enumerate(model.spec.lora_shapes):
        folder = write_random_adapter(tmp_path / module, model, rank=256, seed=number, target_modules=(module,))
        ref = read_adapter(folder, model)
        if number % 2 and module != "embed_tokens":
            ref = msgspec.structs.replace(ref, invocation=(number,))
        params = SamplingParams(max_tokens=5, ignore_eos=True, logprobs=2, temperature=float(number % 2), seed=number)
        requests.append(Request(module, number, (90, 7, 31, number), params, ref))
    refs = [request.adapter for request in requests if request.adapter]
    settings: dict[str, Any] = {"requests": requests, "num_lora_pages": 256, "max_lora_rank": 256}
    expected = serve(served.model, refs, **settings)
    assert len({tuple(token for token, _ in answer) for answer in expected.values()}) > len(refs) / 2
    settings["divide_lora_from"] = divide_lora_from
    for answers in run_ranks(size, lambda rank: serve(served.model, refs, rank, **settings)):
        assert_same(answers, expected)


def test_all_sizes_of_a_group_have_the_same_dummy_weights(make_model: Callable[..., Path]) -> None:
    model = make_model("phi3", vocab_size=VOCAB_SIZE)
    expected = serve(model, (), load_format="dummy")
    for answers in run_ranks(2, lambda rank: serve(model, (), rank, load_format="dummy")):
        assert_same(answers, expected)


@pytest.mark.parametrize(("model_type", "settings"), [("llama", {}), ("mistral", {"sliding_window": 9})])
def test_preempted_requests_go_on_with_the_same_tokens(
    model_type: str, settings: dict[str, int], make_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model(model_type, vocab_size=VOCAB_SIZE, **settings)
    adapters = write_adapters(tmp_path, read_model_config(model))
    expected = serve(model, adapters)
    for answers in run_ranks(2, lambda rank: serve(model, adapters, rank, num_kv_pages=10, max_batch_size=5)):
        assert_same(answers, expected)
