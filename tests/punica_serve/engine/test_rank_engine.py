"""A rank follows its leader where steps overlap, as on GPUs. Both are threads here, and a queue is their ring."""

import queue
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from engine_fixtures import MakeAdapter
from mixed_batch import Answers, assert_same, mixed_requests, serve
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.engine import Engine
from punica_serve.engine.engine_parts import EngineParts, alone
from punica_serve.engine.host_tiers import open_early
from punica_serve.engine.rank_engine import RankEngine
from punica_serve.engine.ranks.joining import Joining
from punica_serve.engine.ranks.rank_messages import AuditRank, CopyAdapter, Done, Introduce, RankAudit, StopRank
from punica_serve.engine.ranks.ring_frames import command_frame, read_frame, step_frame
from punica_serve.engine.ranks.step_frames import StepEncoder
from punica_serve.engine.step_runner import LaunchedStep, StepRunner
from punica_serve.models.collectives import Collectives
from punica_serve.process.start_clock import StartClock
from punica_serve.protocol import AdapterRef
from thread_ranks import run_ranks

_DEADLINE_S = 60.0


class _Leader:
    """A runner that tells another rank of each step before it launches it."""

    def __init__(self, own: StepRunner, frames: "queue.SimpleQueue[bytes]") -> None:
        self._own, self._frames = own, frames
        self.overlap_scheduling, self.newest_end = own.overlap_scheduling, own.newest_end
        self.encoder = StepEncoder()

    def launch(self, plan: StepPlan) -> LaunchedStep:
        for number, request in self.encoder.introduce(plan):
            self._frames.put(command_frame(Introduce(number, request)))
        self._frames.put(step_frame(self.encoder.encode(plan)))
        return self._own.launch(plan)


def _lead(
    engine: Engine,
    refs: list[AdapterRef],
    model: ModelConfig,
    frames: "queue.SimpleQueue[bytes]",
    replies: "queue.SimpleQueue[Done]",
) -> Answers:
    leader = _Leader(engine._runner, frames)
    engine._runner = leader
    for ref in refs:
        engine.prefetch(ref)
    while {ref.digest for ref in refs} - set(engine.resident_adapters):
        engine.step()
        engine.wait(0.1)
    for number, ref in enumerate(refs):
        frames.put(command_frame(CopyAdapter(number, ref, engine._loader.adapters.pages(ref.digest))))
        assert replies.get(timeout=_DEADLINE_S) == Done(number)
    answers: Answers = {}
    for request in mixed_requests(refs, model.vocab_size):
        answers[request.request_id] = []
        engine.add(request)
    num_preempted = 0
    while engine.num_requests:
        output = engine.step()
        num_preempted += len(output.preempted)
        for token in output.tokens:
            answers[token.request_id].append((token.token_id, token.logprobs))
    assert num_preempted
    frames.put(command_frame(AuditRank(7)))
    done = replies.get(timeout=_DEADLINE_S)
    assert done.audit is not None
    assert done.audit.launches_ns
    audit = RankAudit(leader.encoder.known, engine._loader.adapters.pages_by_digest, done.audit.launches_ns)
    assert done == Done(7, audit=audit)
    return answers


@pytest.mark.usefixtures("overlapped")
def test_a_rank_knows_the_tokens_that_its_leader_does_not(
    tiny_llama: Path, tiny_model: ModelConfig, make_adapter: MakeAdapter
) -> None:
    refs = [make_adapter(rank, rank) for rank in (4, 8, 12)]
    expected = serve(tiny_llama, refs)
    settings = {"dtype": "float32", "page_size": 4, "num_kv_pages": 11, "num_lora_pages": 16}
    config = EngineConfig(model=tiny_llama, prefill_budget_tokens=8, **settings)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    replies: queue.SimpleQueue[Done] = queue.SimpleQueue()

    def lead(collectives: Collectives) -> Answers:
        engine = Engine(config, collectives=collectives)
        try:
            return _lead(engine, refs, tiny_model, frames, replies)
        finally:
            frames.put(command_frame(StopRank()))
            engine.close()

    launched: list[int] = []

    def follow(collectives: Collectives) -> None:
        clock = StartClock()
        parts = EngineParts.make(config, torch.device("cpu"), Joining.done(collectives), alone, ExitStack(), clock)
        host_memory = open_early(config, parts.device, collectives.rank)
        rank = RankEngine(config, parts, replies.put, clock, host_memory, on_launch=launched.append)
        goes_on = True
        while goes_on:
            frame = read_frame(frames.get(timeout=_DEADLINE_S))
            if isinstance(frame, tuple):
                rank.run_step(frame)
                for step in rank._runner._steps:  # type: ignore[attr-defined]
                    step.was_read = True  # nobody reads a rank's tokens
            else:
                goes_on = rank.apply(frame)
        rank.close()

    answers, _ = run_ranks(2, lambda own: follow(own) if own.rank.index else lead(own))
    assert answers is not None and launched == sorted(launched)
    assert_same(answers, expected)
