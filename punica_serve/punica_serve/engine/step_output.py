"""The results of a step."""

from dataclasses import dataclass
from typing import NamedTuple

from punica_serve.engine.launch_lead import LaunchMargin
from punica_serve.errors import PunicaError
from punica_serve.protocol import EndReason, TokenLogprobs


class GeneratedToken(NamedTuple):
    request_id: str
    #: Index among the request's generated tokens.
    position: int
    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Requests that failed for one reason: their adapter can't be loaded, or their logits are not finite."""

    request_ids: tuple[str, ...]
    #: It would fail on every other device, too.
    permanent: bool
    error: PunicaError


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The results of a step; where steps overlap, of the one launched by the previous call."""

    tokens: tuple[GeneratedToken, ...] = ()
    #: (request_id, reason), after the tokens.
    finished: tuple[tuple[str, EndReason], ...] = ()
    failures: tuple[Failure, ...] = ()
    #: Requests that gave their pages to older ones and wait again.
    preempted: tuple[str, ...] = ()
    #: (request_id, prompt tokens that were found in the KvCache), with the first tokens of those that found any.
    cached: tuple[tuple[str, int], ...] = ()
    #: Whether a step was launched or has ended. If not, nothing can run until something changes.
    has_run: bool = False
    #: Rows of the step that has ended, one for each request; 0 if none has.
    batch_size: int = 0
    num_prefill_tokens: int = 0
    #: Different adapters in the batch.
    num_adapters: int = 0
    #: From its launch, or the end of the step before it if that was later.
    duration_s: float = 0.0
    #: How early the step was launched that follows this one; None if none was before this one ended.
    margin: LaunchMargin | None = None
