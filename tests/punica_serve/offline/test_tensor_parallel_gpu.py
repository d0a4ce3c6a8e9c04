"""A group of two GPUs, joined by NCCL: the tokens of one GPU, with and without CUDA graphs, and a timely end."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from process_tree import alive
from punica_serve import LLM, SamplingParams
from punica_serve.offline.llm import Answer
from punica_serve.protocol import AdapterRef
from punica_serve.protocol.request import TokenLogprobs
from rank_pids import rank_pids

NUM_GPUS = torch.cuda.device_count()

# Triton compiles its kernels the first time, in two processes at once.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, and there are {NUM_GPUS}"),
]

#: Graphs, ranks and process group end in this time, or something waits for something that is gone.
_CLOSE_S = 20.0
#: Log-probabilities of one token that are closer are the same in bfloat16.
_NEAR = 0.1
_NUM_REQUESTS = 16
_SCRIPT_S = 180.0


def _answers(llm: LLM, names: list[str]) -> list[Answer]:
    """Mixed rows, twice, so that adapters that were evicted come back."""
    prompts = [f"{number}" * (1 + number % 9) for number in range(_NUM_REQUESTS)]
    lora_ids = [([*names, None])[number % (len(names) + 1)] for number in range(_NUM_REQUESTS)]
    params = [
        SamplingParams(
            max_tokens=12 + number % 5,
            temperature=0.4 * (number % 3),
            seed=number,
            top_k=6 * (number % 2),
            repetition_penalty=1.2 if number % 4 == 0 else 1.0,
            ignore_eos=True,
            logprobs=4,
        )
        for number in range(_NUM_REQUESTS)
    ]
    answers = llm.generate(prompts, lora_ids, params, progress=False)
    return answers + llm.generate(prompts, lora_ids[::-1], params, progress=False)


def _is_greedy(number: int) -> bool:
    """Whether ``_answers`` takes this request's most likely tokens: without temperature and penalty."""
    return number % 3 == 0 and number % 4 != 0


def _assert_near_tie(ours: TokenLogprobs, theirs: TokenLogprobs, is_greedy: bool) -> None:
    """The probabilities are the same up to rounding, so the tokens differ by a tie: with noise, if that is added."""
    others = dict(zip(theirs.top_ids, theirs.top_logprobs, strict=True))
    shared = [
        (logprob, others[token])
        for token, logprob in zip(ours.top_ids, ours.top_logprobs, strict=True)
        if token in others
    ]
    assert shared
    assert all(abs(one - other) < _NEAR for one, other in shared)
    if is_greedy:
        assert abs(ours.logprob - theirs.logprob) < _NEAR


def _of_group(model: Path, adapters: dict[str, str], **settings: Any) -> list[Answer]:
    """Answers of two GPUs; all of their processes have ended afterwards."""
    with LLM(model, adapters, device="cuda:0", tensor_parallel=2, **settings) as llm:
        answers = _answers(llm, list(adapters))
        llm.engine.check_invariants()
        pids = rank_pids(llm.engine)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < _CLOSE_S
    assert not alive(pids)
    return answers


@pytest.fixture
def adapters(make_adapter: Callable[..., AdapterRef]) -> dict[str, str]:
    return {f"a{rank}": make_adapter(rank=rank, seed=rank).uri for rank in (4, 8, 16, 64)}


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_two_gpus_say_what_one_says(tiny_llama: Path, adapters: dict[str, str], cuda_graphs: bool) -> None:
    """In float32, where sums in another order decide nothing."""
    settings: dict[str, Any] = {
        "dtype": "float32",
        "page_size": 4,
        "num_kv_pages": 64,
        "num_lora_pages": 10,
        "max_batch_size": 8,
        "prefill_budget_tokens": 16,
        "cuda_graphs": cuda_graphs,
    }
    with LLM(tiny_llama, adapters, device="cuda:0", **settings) as llm:
        expected = _answers(llm, list(adapters))
    answers = _of_group(tiny_llama, adapters, **settings)
    assert not any(answer.error for answer in answers)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]


def test_in_bfloat16_answers_part_at_near_ties_alone(
    tiny_llama: Path, adapters: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    settings: dict[str, Any] = {"dtype": "bfloat16", "page_size": 16, "num_kv_pages": 64, "max_batch_size": 8}
    with LLM(tiny_llama, adapters, device="cuda:0", **settings) as llm:
        expected = _answers(llm, list(adapters))
    answers = _of_group(tiny_llama, adapters, **settings)
    parted = 0
    for place, (answer, other) in enumerate(zip(answers, expected, strict=True)):
        pairs = enumerate(zip(answer.token_ids, other.token_ids, strict=True))
        first = next((position for position, (ours, theirs) in pairs if ours != theirs), None)
        if first is not None:
            parted += 1
            _assert_near_tie(answer.logprobs[first], other.logprobs[first], _is_greedy(place % _NUM_REQUESTS))
    record_property("parted", f"{parted} of {len(answers)} answers")
    print(f"{parted} of {len(answers)} answers part from those of one GPU, at near-ties")  # noqa: T201


def test_the_loss_of_a_rank_ends_a_script_that_waits_for_its_gpu(tiny_llama: Path, tmp_path: Path) -> None:
    """A captured exchange waits for ever, so the process ends instead."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from punica_serve import LLM, SamplingParams\n"
        "with LLM(sys.argv[1], device='cuda:0', tensor_parallel=2, num_kv_pages=512, max_batch_size=8) as llm:\n"
        "    llm.generate('1', progress=False)\n"
        "    os.kill(llm.engine.ranks[0].pid, signal.SIGKILL)\n"
        "    while True:\n"
        "        llm.generate('1', params=SamplingParams(max_tokens=50, ignore_eos=True), progress=False)\n"
    )
    ended = _run(script, tiny_llama)
    assert ended.returncode != 0
    assert "rank 1 (cuda:1) died: killed by SIGKILL" in ended.stderr


def test_the_second_group_of_a_process_leaves_its_sums_to_nccl(tiny_llama: Path, tmp_path: Path) -> None:
    """Torch maps memory only among processes that have done so equally often, and its other rank is a new one."""
    script = tmp_path / "script.py"
    script.write_text(
        "import logging, sys\n"
        "from punica_serve import LLM, SamplingParams\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "settings = dict(dtype='float32', num_kv_pages=64, max_batch_size=4, exchange='fused')\n"
        "for _ in range(2):\n"
        "    with LLM(sys.argv[1], device='cuda:0', tensor_parallel=2, **settings) as llm:\n"
        "        params = SamplingParams(max_tokens=20, ignore_eos=True)\n"
        "        print(llm.generate('1', params=params, progress=False)[0].token_ids)\n"
    )
    ended = _run(script, tiny_llama)
    assert ended.returncode == 0, ended.stderr
    first, second = ended.stdout.splitlines()
    assert first == second
    assert ended.stderr.count("with the norm: fused up to") == 1
    assert "left to NCCL: the process of rank 0 has been in an earlier group" in ended.stderr


def _run(script: Path, model: Path) -> "subprocess.CompletedProcess[str]":
    """A script on the model, with this process's modules."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), str(model)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SCRIPT_S, check=False)
