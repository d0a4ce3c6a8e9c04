import pytest

from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.request_state import TRANSITIONS, InvalidTransition, RequestState
from punica_serve.protocol import AdapterRef, Request, SamplingParams


def record(*, max_tokens: int = 4, generated_ids: tuple[int, ...] = ()) -> RequestRecord:
    adapter = AdapterRef("digest", "", 1, {"q_proj": 9, "down_proj": 8})
    return RequestRecord.of(
        "f", 1, Request("r1", 5, (1, 2, 3), SamplingParams(max_tokens=max_tokens), adapter, generated_ids)
    )


@pytest.mark.parametrize("start", RequestState)
@pytest.mark.parametrize("finish", RequestState)
def test_an_illegal_transition_carries_the_event_log_and_changes_nothing(
    start: RequestState, finish: RequestState
) -> None:
    request = record()
    request.state = start
    if finish in TRANSITIONS[start]:
        request.become(finish, [])
        assert request.state is finish
        return
    with pytest.raises(InvalidTransition, match=f"r1 is {start.value} and can't become {finish.value}") as error:
        request.become(finish, ["what happened"])
    assert error.value.event_log == ("what happened",)
    assert request.state is start


def test_nothing_follows_an_end() -> None:
    ends = {RequestState.FINISHED, RequestState.CANCELLED, RequestState.FAILED}
    assert {state for state, nexts in TRANSITIONS.items() if not nexts} == ends


def test_growth_ends_at_max_tokens() -> None:
    request = record(max_tokens=4, generated_ids=(8, 9))
    assert [request.num_tokens_after(num_steps) for num_steps in range(4)] == [5, 6, 7, 7]


def test_what_a_gpu_needs_is_the_request_with_all_its_tokens() -> None:
    request = record(generated_ids=(8,))
    request.generated_ids.append(9)
    assert request.as_it_is().generated_ids == (8, 9)
    assert request.lora_pages == {"qkv": 2, "down": 1}
