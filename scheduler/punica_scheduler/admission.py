"""Which requests no GPU of the cluster can ever run, or be sent, and what their clients are told."""

from collections.abc import Collection

from punica_scheduler.capacity import STEPS_AHEAD, Capacity
from punica_scheduler.request import RequestRecord
from punica_serve.errors import InvalidRequest, PunicaError, RequestFailed
from punica_serve.protocol import MAX_FRAME_BYTES, MAX_TOKEN_BYTES, AddRequest, Request, encode

#: What a start adds to its request: GPU UUID, numbers, tag; or an addition: its handle.
_START_BYTES = 1024


def refusal(record: RequestRecord, capacities: Collection[Capacity]) -> PunicaError | None:
    """Why no GPU of these capacities, of which there is at least one, can run the request even alone; None if one can.

    A request that has not begun must fit with its whole answer. One that has begun goes on for as long as it fits.
    """
    has_begun = bool(record.generated_ids)
    num_tokens = record.num_tokens_after(STEPS_AHEAD) if has_begun else record.num_prompt + record.max_tokens
    for capacity in capacities:
        if num_tokens <= capacity.num_tokens and capacity.could_load(record):
            return None
    loadable = [capacity.num_tokens for capacity in capacities if capacity.could_load(record)]
    if not loadable:
        return _adapter_too_large(record)
    return _outgrown(record, max(loadable)) if has_begun else _too_long(record, max(loadable))


def too_long_to_send(request: Request) -> InvalidRequest | None:
    """Why the request would outgrow a frame with its answer, if it would: a start carries all tokens so far."""
    num_bytes = len(encode(AddRequest(0, request))) + MAX_TOKEN_BYTES * request.sampling.max_tokens
    if num_bytes <= MAX_FRAME_BYTES - _START_BYTES:
        return None
    return InvalidRequest(
        f"a request of {len(request.prompt_ids)} prompt tokens and max_tokens of {request.sampling.max_tokens} may "
        f"grow to {num_bytes} bytes, and {MAX_FRAME_BYTES} can be sent; shorten the prompt or set a lower max_tokens",
        param="max_tokens",
    )


def _adapter_too_large(record: RequestRecord) -> PunicaError:
    pages = ", ".join(f"{count} of {group}" for group, count in record.lora_pages.items())
    return InvalidRequest(
        f"the adapter takes more pages ({pages}) than the LoRA pool of any GPU has; "
        "use an adapter of lower rank or raise engine.num_lora_pages",
        param="lora_id",
    )


def _too_long(record: RequestRecord, capacity: int) -> PunicaError:
    num_prompt = len(record.request.prompt_ids)
    if num_prompt + 1 > capacity:
        return InvalidRequest(
            f"the prompt has {num_prompt} tokens and the KvCache of the largest GPU holds {capacity}, "
            "one of them for the answer; shorten the prompt",
            param="prompt",
        )
    return InvalidRequest(
        f"a prompt of {num_prompt} tokens and an answer of up to {record.request.sampling.max_tokens} exceed the "
        f"{capacity} that the KvCache of the largest GPU holds; set max_tokens to {capacity - num_prompt} or less",
        param="max_tokens",
    )


def _outgrown(record: RequestRecord, capacity: int) -> PunicaError:
    return RequestFailed(
        f"the request has grown to {record.num_tokens} tokens, and the KvCache of the largest GPU that is left "
        f"holds {capacity}; ask for fewer tokens or add a larger GPU"
    )
