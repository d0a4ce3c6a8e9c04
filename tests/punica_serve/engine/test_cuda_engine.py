"""The engine on a GPU against itself: steps replayed as graphs, launched one by one, alone and together, on a CPU."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine_fixtures import MakeAdapter, MakeEngine
from engine_tokens import add_step, tokens_of
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef, Request, SamplingParams

# Triton compiles its kernels the first time.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

#: Models with heads of a common size.
_WIDE_SHAPE = {"hidden_size": 256, "initializer_range": 0.05}


def _requests(refs: Sequence[AdapterRef | None], **params: Any) -> list[Request]:
    """Prompts of many lengths, so that steps mix prefills, chunks and decodes."""
    return [
        Request(
            f"{number}",
            number,
            tuple((number * 11 + token * 7) % 90 + 1 for token in range(1 + number * 5 % 37)),
            SamplingParams(max_tokens=8 + number % 9, ignore_eos=True, seed=number, **params),
            ref,
        )
        for number, ref in enumerate(refs)
    ]


@pytest.fixture(scope="module")
def refs(make_adapter: MakeAdapter) -> list[AdapterRef | None]:
    adapters = [make_adapter(rank, seed) for seed, rank in enumerate((1, 8, 16, 40, 128))]
    return [None, *adapters, adapters[0], None, *adapters[2:], adapters[1], adapters[1]]


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8}, {"temperature": 1.1, "top_p": 0.9, "top_k": 20}])
def test_the_gpu_says_what_the_cpu_says(
    make_engine: MakeEngine, refs: list[AdapterRef | None], params: dict[str, float]
) -> None:
    requests = _requests(refs, **params)
    settings = {"prefill_budget_tokens": 16, "max_batch_size": 8}
    assert tokens_of(make_engine(device="cuda", **settings), requests) == tokens_of(make_engine(**settings), requests)


@pytest.mark.parametrize("max_prefills", [2, 4])
def test_prefills_that_share_a_step_change_nothing(
    make_engine: MakeEngine, refs: list[AdapterRef | None], max_prefills: int
) -> None:
    requests = _requests(refs)
    settings = {"device": "cuda", "prefill_budget_tokens": 40, "max_batch_size": 8}
    assert tokens_of(make_engine(**settings, max_prefills=max_prefills), requests) == tokens_of(
        make_engine(**settings), requests
    )


def test_penalties_follow_tokens_in_flight(make_engine: MakeEngine, refs: list[AdapterRef | None]) -> None:
    requests = _requests(refs, presence_penalty=0.7, repetition_penalty=1.3, frequency_penalty=0.2, min_tokens=3)
    assert tokens_of(make_engine(device="cuda"), requests) == tokens_of(make_engine(), requests)


def test_graphs_equal_launches_one_by_one(make_engine: MakeEngine, refs: list[AdapterRef | None]) -> None:
    requests = _requests(refs)
    launched = tokens_of(make_engine(device="cuda", cuda_graphs=False), requests)
    assert tokens_of(make_engine(device="cuda"), requests) == launched


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 64), (8, 2, 64), (8, 1, 128)])
def test_graphs_equal_launches_one_by_one_in_half_precision(
    make_engine: MakeEngine, make_llama: Callable[..., Path], tmp_path: Path, heads: int, kv_heads: int, head_dim: int
) -> None:
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    folder = make_llama(**_WIDE_SHAPE, **shape)
    model = read_model_config(folder)
    folders = [write_random_adapter(tmp_path / f"{rank}", model, rank=rank, seed=rank) for rank in (4, 16, 64)]
    refs = [None, *(read_adapter(adapter, model) for adapter in folders)] * 3
    settings = {"model": folder, "device": "cuda", "dtype": "bfloat16", "page_size": 16, "prefill_budget_tokens": 32}

    def run(**more: bool) -> dict[str, list[int]]:
        engine = make_engine(**settings, **more)
        # In bf16 a token may hang on who shares its step: with all adapters there, the steps are the same.
        tokens_of(engine, [replace(request, request_id=f"first-{request.request_id}") for request in _requests(refs)])
        return tokens_of(engine, _requests(refs))

    assert run() == run(cuda_graphs=False)


def test_steps_of_one_request(make_engine: MakeEngine, refs: list[AdapterRef | None]) -> None:
    """No decode has room beside a prefill."""
    requests = _requests(refs[:5])
    settings = {"max_batch_size": 1, "prefill_budget_tokens": 16}
    assert tokens_of(make_engine(device="cuda", **settings), requests) == tokens_of(make_engine(**settings), requests)


def test_a_step_of_more_rows_than_a_launch_has_room_for_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match=r"lower `engine\.prefill_budget_tokens` to about [0-9]+$"):
        make_engine(device="cuda", prefill_budget_tokens=2_000_000)


def test_numbers_that_are_not_finite_stay_with_their_request(
    make_engine: MakeEngine, make_llama: Callable[..., Path], tmp_path: Path
) -> None:
    """Its leftovers in the KvCache and in buffers harm nobody: here in bfloat16, in `test_overlap_scheduling` in
    float32.
    """
    folder = make_llama(**_WIDE_SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    write_random_adapter(tmp_path / "poison", read_model_config(folder), rank=8, seed=1, scale=1e30)
    poison = read_adapter(tmp_path / "poison", read_model_config(folder))
    engine = make_engine(folder, "cuda", dtype="bfloat16", num_kv_pages=64, prefill_budget_tokens=32, max_batch_size=8)
    good = _requests([None] * 12)
    for request in (*good[:5], _poisoned(0, poison), _poisoned(1, poison), *good[5:]):
        engine.add(request)
    failed: list[str] = []
    finished: dict[str, str] = {}
    while engine.num_requests:
        output = engine.step()
        failed += [request_id for failure in output.failures for request_id in failure.request_ids]
        finished |= dict(output.finished)
        if not output.has_run:
            engine.wait(10.0)
    assert sorted(failed) == ["poisoned 0", "poisoned 1"]
    assert finished == {request.request_id: "length" for request in good}


def _poisoned(number: int, poison: AdapterRef) -> Request:
    prompt = tuple(range(1, 30 + 40 * number))
    return Request(f"poisoned {number}", number, prompt, SamplingParams(max_tokens=8, ignore_eos=True), poison)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_gpu_of_a_host_will_do(
    make_engine: MakeEngine, make_llama: Callable[..., Path], tmp_path: Path, dtype: str
) -> None:
    folder = make_llama(**_WIDE_SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    write_random_adapter(tmp_path / "adapter", read_model_config(folder), rank=16, seed=1)
    requests = _requests([None, read_adapter(tmp_path / "adapter", read_model_config(folder))] * 4)
    settings = {"model": folder, "dtype": dtype, "prefill_budget_tokens": 32, "max_batch_size": 8}
    second = tokens_of(make_engine(device="cuda:1", **settings), requests)
    assert second == tokens_of(make_engine(device="cuda:0", **settings), requests)


def test_a_request_that_is_put_back_to_wait_goes_on_where_it_was(
    make_engine: MakeEngine, refs: list[AdapterRef | None]
) -> None:
    requests = _requests(refs)
    preempted = make_engine(device="cuda", num_kv_pages=24)
    assert tokens_of(preempted, requests) == tokens_of(make_engine(device="cuda"), requests)


def test_adapters_that_take_turns_in_a_small_pool(make_engine: MakeEngine, refs: list[AdapterRef | None]) -> None:
    requests = _requests(refs * 3)
    crowded = make_engine(device="cuda", num_lora_pages=17)
    assert tokens_of(crowded, requests) == tokens_of(make_engine(device="cuda"), requests)


def test_a_cancelled_request_leaves_the_others_alone(make_engine: MakeEngine, refs: list[AdapterRef | None]) -> None:
    requests = _requests(refs)
    undisturbed = tokens_of(make_engine(device="cuda"), requests)
    engine = make_engine(device="cuda")
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while not (tokens["3"] and tokens["4"]):
        add_step(engine, tokens)
    engine.cancel("3")
    engine.cancel("4")
    engine.add(requests[4])
    tokens["4"] = []
    while engine.num_requests:
        add_step(engine, tokens)
    del undisturbed["3"], tokens["3"]
    assert tokens == undisturbed


def test_dummy_weights_need_no_files(tmp_path: Path, tiny_llama: Path, make_engine: MakeEngine) -> None:
    (tmp_path / "config.json").write_text((tiny_llama / "config.json").read_text())
    engine = make_engine(model=tmp_path, device="cuda", load_format="dummy", dtype="bfloat16", num_kv_pages=None)
    assert engine.num_kv_pages * 4 > 10_000
    assert all(len(tokens) >= 8 for tokens in tokens_of(engine, _requests([None] * 5)).values())
