"""Committing the tokens of a step that has ended."""

from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.in_flight import InFlight
from punica_serve.engine.request_table import RequestTable
from punica_serve.engine.sampler import Sampler
from punica_serve.engine.step_clock import StepClock
from punica_serve.engine.step_output import Failure, GeneratedToken, StepOutput
from punica_serve.errors import RequestFailed
from punica_serve.protocol import EndReason


def commit(ended: InFlight, requests: RequestTable, sampler: Sampler, clock: StepClock) -> StepOutput:
    """Waits for the step, appends its tokens to the sequences, and drops those that ended."""
    plan, sampled_tokens = ended.plan, ended.step.sampled_tokens()
    duration_s = clock.end(ended)
    if plan.assist is not None:
        requests.settle(plan.prefills[0], is_good=plan.assist.end())
    tokens: list[GeneratedToken] = []
    found: list[tuple[str, int]] = []
    finished: list[tuple[str, EndReason]] = []
    failures: list[Failure] = []
    for sequence, sampled in zip(plan.sampled, sampled_tokens, strict=True):
        # The request ended, was cancelled or preempted, or is computed again: drop the token.
        if not requests.has(sequence) or not sequence.num_in_flight:
            continue
        sequence.num_in_flight -= 1
        if sampled is None:
            failures.append(_not_finite(sequence))
            requests.drop(sequence.request_id, keep_pages=False)
            continue
        if sequence.num_found and sequence.num_generated == len(sequence.request.generated_ids):
            found.append((sequence.request_id, min(sequence.num_found, sequence.num_prompt)))
        tokens.append(GeneratedToken(sequence.request_id, sequence.num_generated, *sampled))
        sequence.token_ids.append(sampled.token_id)
        reason = _end_reason(sequence, sampler)
        if reason is not None:
            finished.append((sequence.request_id, reason))
            requests.drop(sequence.request_id)
    return StepOutput(
        tokens=tuple(tokens),
        cached=tuple(found),
        finished=tuple(finished),
        failures=tuple(failures),
        has_run=True,
        batch_size=len(plan.sequences),
        num_prefill_tokens=plan.num_prefill_tokens,
        num_adapters=plan.num_adapters,
        duration_s=duration_s,
        margin=clock.margin,
    )


def _end_reason(sequence: Sequence, sampler: Sampler) -> EndReason | None:
    """The reason why the sequence ends with its newest token; None if it goes on."""
    if sampler.is_end(sequence, sequence.token_ids[-1]):
        return "stop"
    return "length" if len(sequence.token_ids) >= sequence.max_length else None


def _not_finite(sequence: Sequence) -> Failure:
    """The failure of a request whose logits are not finite: its answer would be noise, and its NaNs must not spread."""
    whose = "the adapter's or the base model's" if sequence.adapter else "the base model's"
    message = (
        f"the model's output is not finite at position {sequence.position}: {whose} weights are too large or damaged"
    )
    error = RequestFailed(message, param="lora_id" if sequence.adapter else None)
    return Failure((sequence.request_id,), permanent=True, error=error)
