"""Admission: refuses requests that no GPU of the cluster can ever run, or that no frame can carry."""

from collections.abc import Collection

from punica_scheduler.core.capacity import Capacity
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.fleet import Fleet
from punica_scheduler.core.request import RequestRecord
from punica_serve.base_model.lora_layout import VOCABULARY_GROUPS
from punica_serve.errors import ContextOverflow, InvalidRequest, OutOfCapacity, PunicaError
from punica_serve.numbers import counted
from punica_serve.protocol import MAX_FRAME_BYTES, MAX_TOKEN_BYTES, AddRequest, LoraGroup, Request, encode

#: A start command adds these to its request: GPU UUID, numbers, tag. An AddRequest adds its handle.
_START_BYTES = 1024
#: A prompt and answer that take no more are not measured any closer: no frontend takes a body whose ids and stop tokens
#: could fill the other half of a frame.
_NO_LONG_REQUEST_BYTES = MAX_FRAME_BYTES // 2


def refusal_on_arrival(record: RequestRecord, state: ClusterState, max_queue: int) -> PunicaError | None:
    """Why a request is not taken in, but for its tenant's quota; what GPUs hold counts once they are known."""
    if record.request_id in state.requests:
        return InvalidRequest("another frontend has a request of this id; ids must be unique", param="request_id")
    if error := too_long_to_send(record.request):
        return error
    # One that is added again was admitted once; a restart of ours, after which all of them wait, must not fail it.
    if record.was_admitted:
        return None
    num_waiting = state.waiting.num_for_gpu
    if num_waiting >= max_queue:
        return OutOfCapacity(f"the queue for a GPU is full, with {counted(num_waiting, 'request')}; try again later")
    knows_gpus = state.is_settled and bool(state.fleet.gpus)
    return refusal(record, state.fleet) if knows_gpus else None


def refusal(record: RequestRecord, fleet: Fleet) -> PunicaError | None:
    """Why no GPU of the fleet, of which there is at least one, can run the request, alone, to its whole answer.

    None if one can. Where only GPUs that are being drained could, it would hold up the queue; where all are, it waits.
    """
    if record.fits_fleet_version == fleet.version:
        return None
    capacities = fleet.capacities
    if _fits_one(record, fleet.open_capacities or capacities):
        record.fit_fleet(fleet.version)
        return None
    if _fits_one(record, capacities):
        return OutOfCapacity(
            "the only GPUs that are large enough for the request are being drained; try again when another has joined"
        )
    loadable = [capacity.num_tokens for capacity in capacities if capacity.could_load(record)]
    return _too_long(record, max(loadable)) if loadable else _adapter_too_large(record, capacities)


def could_go_on(record: RequestRecord, fleet: Fleet) -> bool:
    """Whether a GPU that takes requests is large enough for one as it is now, whatever it may grow to."""
    return any(capacity.could_run(record) for capacity in fleet.open_capacities or fleet.capacities)


def _fits_one(record: RequestRecord, capacities: Collection[Capacity]) -> bool:
    return any(record.max_num_tokens <= capacity.num_tokens and capacity.could_load(record) for capacity in capacities)


def too_long_to_send(request: Request) -> InvalidRequest | None:
    """Why the request would outgrow a frame with its answer, if it would: a start carries all tokens so far."""
    if MAX_TOKEN_BYTES * request.max_num_tokens <= _NO_LONG_REQUEST_BYTES:
        return None
    num_bytes = len(encode(AddRequest(0, request))) + MAX_TOKEN_BYTES * request.sampling.max_tokens
    if num_bytes <= MAX_FRAME_BYTES - _START_BYTES:
        return None
    prompt = counted(len(request.prompt_ids), "prompt token")
    return InvalidRequest(
        f"a request of {prompt} and max_tokens of {request.sampling.max_tokens} may "
        f"grow to {num_bytes} bytes, and {MAX_FRAME_BYTES} can be sent; shorten the prompt or set a lower max_tokens",
        param="max_tokens",
    )


def _adapter_too_large(record: RequestRecord, capacities: Collection[Capacity]) -> PunicaError:
    if names := [name for group in _groups_without_pages(record, capacities) for name in VOCABULARY_GROUPS[group]]:
        updated = " and ".join(names)
        return InvalidRequest(
            f"the adapter updates {updated}, for which no GPU has pages; set engine.lora_vocabulary to true",
            param="lora_id",
        )
    pages = ", ".join(f"{count} of {group}" for group, count in record.lora_pages.items())
    return InvalidRequest(
        f"the adapter takes more pages ({pages}) than the LoRA pool of any GPU has; "
        "use an adapter of lower rank or raise engine.num_lora_pages",
        param="lora_id",
    )


def _groups_without_pages(record: RequestRecord, capacities: Collection[Capacity]) -> list[LoraGroup]:
    """The groups beside the layers that the adapter updates, and of which no GPU has a page."""
    updated = (group for group in VOCABULARY_GROUPS if group in record.lora_pages)
    return [group for group in updated if not any(capacity.lora_pool.get(group) for capacity in capacities)]


def _too_long(record: RequestRecord, capacity: int) -> PunicaError:
    num_prompt = len(record.request.prompt_ids)
    if num_prompt + 1 > capacity:
        return ContextOverflow(
            f"the prompt has {num_prompt} tokens and the KvCache of the largest GPU holds {capacity}, "
            "one of them for the answer; shorten the prompt",
            param="prompt",
        )
    prompt, max_tokens = counted(num_prompt, "token"), record.request.sampling.max_tokens
    return ContextOverflow(
        f"a prompt of {prompt} and an answer of up to {max_tokens} exceed the {capacity} that the KvCache of the "
        f"largest GPU holds; set max_tokens to {capacity - num_prompt} or less",
        param="max_tokens",
    )
