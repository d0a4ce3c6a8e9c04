"""The parity probe: runs one adapter in our engine, and in transformers with PEFT, on the same base weights.

Both compute in fp32 on the CPU, one after the other, to need memory for only one at a time. The engine answers a few
prompts greedily, as it serves; PEFT scores those answers. The probe compares log-probabilities, which are logits
without the offset shared by all tokens of a position.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from rich.table import Table
from torch import Tensor

from punica_serve.base_model.model_config import ModelDtype
from punica_serve.cli.adapters.oracle import load_base, load_with_adapter
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import GeneratedToken
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef, Request, SamplingParams

#: Rounding causes a hundredth of this on the demo model; a scaling that is off by a thousandth causes several times as
#: much.
TOLERANCE = 1e-3
#: Prompt lengths in tokens: one, a few, and more than a page of the KvCache.
_PROMPT_LENGTHS = (1, 6, 40)
_NUM_GENERATED = 8
#: Number of tokens compared, the most likely at each position.
_NUM_COMPARED = 256
#: How long to wait for the adapter before checking again; its arrival ends the wait.
_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A greedy answer, and the engine's log-probabilities of the most likely tokens: a row per token of the answer."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Parity:
    """The distance between engine and PEFT on one prompt, in nats."""

    num_prompt_tokens: int
    num_compared: int
    difference: float
    #: The adapter's own effect on the same tokens: the difference that omitting it would make. None: there is none.
    effect: float | None


def probe(config: EngineConfig, ref: AdapterRef) -> list[Parity]:
    """Compares each prompt. Raises any error from loading the model and the adapter."""
    if config.load_format == "dummy":
        raise ConfigError("`engine.load_format` is dummy, so there are no weights to compare; use a model with weights")
    return compare(engine_answers(config, ref), config.model, Path(ref.uri))


def engine_answers(
    config: EngineConfig, ref: AdapterRef | None, *, dtype: ModelDtype = "float32", device: str = "cpu"
) -> list[EngineAnswer]:
    """The engine's answers to all prompts, in one batch, by an adapter or the base model.

    Raises ConfigError if the context is too short.
    """
    invocation = ref.invocation if ref else ()
    engine = Engine(config.model_copy(update={"dtype": dtype}), device)
    try:
        vocab_size = engine.model_config.vocab_size
        params = SamplingParams(max_tokens=_NUM_GENERATED, ignore_eos=True, logprobs=min(_NUM_COMPARED, vocab_size))
        requests = {
            f"{length}": Request(f"{length}", length, (*_prompt(length, vocab_size), *invocation), params, ref)
            for length in _PROMPT_LENGTHS
            if length + len(invocation) + _NUM_GENERATED <= engine.max_context
        }
        if not requests:
            least = _PROMPT_LENGTHS[0] + _NUM_GENERATED
            message = f"the context is {engine.max_context} tokens, but comparing needs {least}"
            raise ConfigError(f"{message}; raise `engine.max_context`", param="engine.max_context")
        for request in requests.values():
            engine.add(request)
        return _answers(engine, requests)
    finally:
        engine.close()


def compare(answers: Iterable[EngineAnswer], model_folder: Path, adapter_folder: Path) -> list[Parity]:
    """Scores the engine's answers with PEFT. Raises ConfigError if it can't apply the adapter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT calls transformers in a deprecated way
        model = load_with_adapter(model_folder, adapter_folder)
    return [_compare(answer, model) for answer in answers]


def compare_base(
    answers: Iterable[EngineAnswer], model_folder: Path, *, dtype: ModelDtype = "float32", device: str = "cpu"
) -> list[Parity]:
    """Scores the engine's answers with transformers, without an adapter."""
    model = load_base(model_folder, getattr(torch, dtype))
    model.to(device)
    with torch.inference_mode():
        return [_parity(answer, _logprobs(answer, model)) for answer in answers]


def parity_table(rows: Sequence[Parity]) -> Table:
    has_adapter = any(row.effect is not None for row in rows)
    columns = ("prompt tokens", "logits compared", "largest difference")
    table = Table(*columns, *(("effect of the adapter",) if has_adapter else ()), box=None)
    for row in rows:
        effect = () if row.effect is None else (f"{row.effect:.1e}",)
        table.add_row(str(row.num_prompt_tokens), str(row.num_compared), f"{row.difference:.1e}", *effect)
    return table


def _prompt(length: int, vocab_size: int) -> tuple[int, ...]:
    """A prompt of arbitrary tokens, spread over the vocabulary; an activated adapter is invoked behind it."""
    return tuple((7 + 31 * length + 7919 * index) % vocab_size for index in range(length))


def _answers(engine: Engine, requests: dict[str, Request]) -> list[EngineAnswer]:
    tokens: dict[str, list[GeneratedToken]] = {request_id: [] for request_id in requests}
    while engine.num_requests:
        output = engine.step()
        for failure in output.failures:
            raise failure.error
        for token in output.tokens:
            tokens[token.request_id].append(token)
        if not output.has_run:
            engine.wait(_WAIT_S)
    return [_answer(request, tokens[request_id]) for request_id, request in requests.items()]


def _answer(request: Request, tokens: Sequence[GeneratedToken]) -> EngineAnswer:
    rows = [token.logprobs for token in tokens if token.logprobs]
    return EngineAnswer(
        request.prompt_ids,
        tuple(token.token_id for token in tokens),
        torch.tensor([row.top_ids for row in rows]),
        torch.tensor([row.top_logprobs for row in rows]),
    )


@torch.inference_mode()
def _compare(answer: EngineAnswer, model: PeftModel) -> Parity:
    expected = _logprobs(answer, model)
    with model.disable_adapter():
        without = _logprobs(answer, model)
    return _parity(answer, expected, effect=(without - expected).abs().max().item())


def _parity(answer: EngineAnswer, expected: Tensor, effect: float | None = None) -> Parity:
    return Parity(
        num_prompt_tokens=len(answer.prompt_ids),
        num_compared=answer.top_ids.numel(),
        difference=(answer.top_logprobs - expected).abs().max().item(),
        effect=effect,
    )


def _logprobs(answer: EngineAnswer, model: torch.nn.Module) -> Tensor:
    """The other's log-probabilities of the tokens that the engine considers most likely."""
    device = next(model.parameters()).device
    ids = torch.tensor([[*answer.prompt_ids, *answer.token_ids[:-1]]], device=device)
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, len(answer.prompt_ids) - 1 :]
    return logits.float().log_softmax(-1).cpu().gather(1, answer.top_ids)
