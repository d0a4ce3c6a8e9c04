"""Which requests no GPU of the cluster can ever run, or be sent, and what their clients are told."""

from collections.abc import Collection

from punica_scheduler.books import Books
from punica_scheduler.capacity import STEPS_AHEAD, Capacity
from punica_scheduler.fleet import Fleet
from punica_scheduler.request import RequestRecord
from punica_serve.counted import counted
from punica_serve.errors import InvalidRequest, OutOfCapacity, PunicaError, RequestFailed
from punica_serve.protocol import MAX_FRAME_BYTES, MAX_TOKEN_BYTES, AddRequest, Request, encode

#: What a start adds to its request: GPU UUID, numbers, tag; or an addition: its handle.
_START_BYTES = 1024
#: A prompt and answer that take no more are not measured any closer: no frontend takes a body whose ids and stop tokens
#: could fill the other half of a frame.
_NO_LONG_REQUEST_BYTES = MAX_FRAME_BYTES // 2


def refusal_on_arrival(
    record: RequestRecord, books: Books, max_queue: int, *, is_new: bool, knows_gpus: bool
) -> PunicaError | None:
    """Why a request is not taken in, but for its tenant's quota; what GPUs hold counts once they are known."""
    if record.request_id in books.requests:
        return InvalidRequest("another frontend has a request of this id; ids must be unique", param="request_id")
    if error := too_long_to_send(record.request):
        return error
    num_waiting = books.waiting.num_for_gpu
    # One that is added again was admitted once; a restart of ours, after which all of them wait, must not fail it.
    if is_new and num_waiting >= max_queue:
        return OutOfCapacity(f"{num_waiting} requests wait for a GPU already; try again later")
    return refusal(record, books.fleet) if knows_gpus else None


def refusal(record: RequestRecord, fleet: Fleet) -> PunicaError | None:
    """Why no GPU of the fleet, of which there is at least one, can run the request even alone; None if one can.

    A request that has not begun must fit with its whole answer. One that has begun goes on for as long as it fits.
    Where only GPUs that are being drained could run it, it would hold up the queue; where all are, it waits.
    """
    if record.fits_fleet_version == fleet.version:
        return None
    capacities = fleet.capacities
    usable = fleet.open_capacities or capacities
    if _fits_one(record, record.max_num_tokens, usable):
        record.fits_fleet_version = fleet.version
        return None
    has_begun = bool(record.generated_ids)
    num_tokens = record.num_tokens_after(STEPS_AHEAD) if has_begun else record.max_num_tokens
    if has_begun and _fits_one(record, num_tokens, usable):
        return None
    if _fits_one(record, num_tokens, capacities):
        return OutOfCapacity(
            "the only GPUs that are large enough for the request are being drained; try again when another has joined"
        )
    loadable = [capacity.num_tokens for capacity in capacities if capacity.could_load(record)]
    if not loadable:
        return _adapter_too_large(record)
    return _outgrown(record, max(loadable)) if has_begun else _too_long(record, max(loadable))


def _fits_one(record: RequestRecord, num_tokens: int, capacities: Collection[Capacity]) -> bool:
    return any(num_tokens <= capacity.num_tokens and capacity.could_load(record) for capacity in capacities)


def too_long_to_send(request: Request) -> InvalidRequest | None:
    """Why the request would outgrow a frame with its answer, if it would: a start carries all tokens so far."""
    if MAX_TOKEN_BYTES * request.max_num_tokens <= _NO_LONG_REQUEST_BYTES:
        return None
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
    prompt, max_tokens = counted(num_prompt, "token"), record.request.sampling.max_tokens
    return InvalidRequest(
        f"a prompt of {prompt} and an answer of up to {max_tokens} exceed the {capacity} that the KvCache of the "
        f"largest GPU holds; set max_tokens to {capacity - num_prompt} or less",
        param="max_tokens",
    )


def _outgrown(record: RequestRecord, capacity: int) -> PunicaError:
    return RequestFailed(
        f"the request has grown to {record.num_tokens} tokens, and the KvCache of the largest GPU that is left "
        f"holds {capacity}; ask for fewer tokens or add a larger GPU"
    )
