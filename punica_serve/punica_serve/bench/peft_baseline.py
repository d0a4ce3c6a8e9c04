"""The baseline: the same requests with transformers and PEFT, eagerly and one at a time, as most people start."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from punica_serve.bench.blas import blas_library
from punica_serve.bench.subject import Subject
from punica_serve.workload import RequestLength

#: Few, since it takes ten times as long as the engine.
NUM_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class PeftTimes:
    """One run."""

    num_requests: int
    num_tokens: int
    seconds: float


def run_peft(subject: Subject, lengths: Sequence[RequestLength], rank: int) -> PeftTimes:
    """Answers the first requests greedily, one after the other, with one adapter on all seven projections.

    An earlier engine in this process may have selected a library for dense products; this uses torch's default. Raises
    ImportError without transformers or PEFT.
    """
    with blas_library("default"):
        return _run(subject, lengths, rank)


def _run(subject: Subject, lengths: Sequence[RequestLength], rank: int) -> PeftTimes:
    model = _make_model(subject, rank)
    taken = lengths[:NUM_REQUESTS]
    _generate(model, subject, RequestLength(8, 8))
    started_s = time.perf_counter()
    for length in taken:
        _generate(model, subject, length)
    return PeftTimes(len(taken), sum(length.output for length in taken), time.perf_counter() - started_s)


def _make_model(subject: Subject, rank: int) -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = subject.model
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with subject.device:
        base = LlamaForCausalLM(config).to(subject.dtype)
        lora = LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model: torch.nn.Module = get_peft_model(base, lora).to(subject.dtype)
    return model.eval()


@torch.inference_mode()
def _generate(model: torch.nn.Module, subject: Subject, length: RequestLength) -> None:
    prompt = torch.arange(length.prompt, device=subject.device)[None] % subject.model.vocab_size
    answer = model.generate(  # type: ignore[operator]
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        min_new_tokens=length.output,
        max_new_tokens=length.output,
    )
    if answer.shape[1] != length.prompt + length.output:
        raise RuntimeError(f"transformers answered with {answer.shape[1] - length.prompt} tokens, not {length.output}")
