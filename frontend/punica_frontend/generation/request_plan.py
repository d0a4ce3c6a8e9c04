"""A request that has been checked and tokenized, before it runs."""

from dataclasses import dataclass

from punica_frontend.api.caller import Caller
from punica_frontend.tenancy.meter import BilledPrompt
from punica_serve.protocol import Request
from punica_serve.registry.records import AdapterVersion


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A request that is ready to be added, with what only this frontend needs to know."""

    request: Request
    caller: Caller
    #: The request's id in frames to the client.
    answer_id: str
    #: The client's name for the adapter; None for the base model.
    lora_id: str | None
    #: The newest version when the request arrived; the request keeps it.
    adapter: AdapterVersion | None
    stops: tuple[str, ...]
    #: Tokens that end the answer and add no text.
    end_ids: frozenset[int]
    #: Shared by all choices of the prompt.
    billed_prompt: BilledPrompt
    #: When the request arrived, on the monotonic clock.
    arrived_s: float
    #: Choices of the prompt, on the first of them; 0 on the others.
    num_choices: int = 1
