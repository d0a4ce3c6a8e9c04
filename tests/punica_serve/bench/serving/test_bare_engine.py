from punica_serve.bench.serving.bare_engine import ClosedLoopClients, engine_requests
from punica_serve.bench.serving.serving_workloads import ServedRequest
from punica_serve.engine.step_output import GeneratedToken, StepOutput
from punica_serve.protocol import AdapterRef

REF = AdapterRef("digest", "", 8, {"q_proj": 8})
SERVED = [ServedRequest((1, 2), 2, None), ServedRequest((3,), 1, 0), ServedRequest((4,), 1, 0)]


def test_an_engine_gets_the_same_requests_under_a_salt_of_their_own() -> None:
    first, second, _ = engine_requests(SERVED, [REF])
    assert (first.prompt_ids, first.sampling.max_tokens, first.adapter) == ((1, 2), 2, None)
    assert second.adapter == REF and first.cache_salt == second.cache_salt
    assert first.cache_salt != engine_requests(SERVED, [REF])[0].cache_salt


def test_a_client_asks_again_when_its_answer_has_ended() -> None:
    loop = ClosedLoopClients(engine_requests(SERVED, [REF]), num_clients=2)
    first, second = loop.due(num_unfinished=0)
    assert loop.due(num_unfinished=2) == []
    tokens = (GeneratedToken(first.request_id, 0, 5, None), GeneratedToken(second.request_id, 0, 5, None))
    loop.on_step(StepOutput(tokens=tokens, finished=((second.request_id, "length"),)))
    (third,) = loop.due(num_unfinished=1)
    assert third.prompt_ids == (4,)
    of_first, of_second, of_third = loop.times
    assert of_first.num_tokens == of_second.num_tokens == 1 and of_first.ended_s is None
    assert of_second.ended_s == of_second.arrivals[0][0] <= of_third.due_s
