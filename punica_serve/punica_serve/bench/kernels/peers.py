"""The best of the systems beside this one, for the same operators: figures to be held against.

Measured beforehand on one NVIDIA H200 with the method of this benchmark (bf16, CUDA graph of 32 layers, cold weights,
median of 7), torch 2.11, Triton 3.6: Punica's BGMV (591b598), vLLM 0.25.1 and SGLang 0.5.23, whichever was quickest.
"""

from typing import NamedTuple

from punica_serve.workload import Population

SOURCE = "best peer: measured beforehand on one H200, torch 2.11, Triton 3.6, by the method of this benchmark"

#: All single-projection figures are h_in = h_out = this.
HIDDEN_SIZE = 4096
DTYPE = "bfloat16"

_BGMV, _VLLM, _SGLANG = "Punica BGMV", "vLLM", "SGLang triton_v2"


class Peer(NamedTuple):
    name: str
    microseconds: float


#: (rank, batch, population) -> quickest peer at y += x A B, 4096 -> rank -> 4096.
PAIR: dict[tuple[int, int, Population], Peer] = {
    (16, 8, Population.DISTINCT): Peer(_BGMV, 8.1),
    (16, 8, Population.UNIFORM): Peer(_BGMV, 8.0),
    (16, 8, Population.SKEWED): Peer(_BGMV, 8.0),
    (16, 8, Population.IDENTICAL): Peer(_BGMV, 7.6),
    (16, 32, Population.DISTINCT): Peer(_BGMV, 11.0),
    (16, 32, Population.UNIFORM): Peer(_VLLM, 9.9),
    (16, 32, Population.SKEWED): Peer(_VLLM, 10.3),
    (16, 32, Population.IDENTICAL): Peer(_VLLM, 8.3),
    (16, 64, Population.DISTINCT): Peer(_BGMV, 15.6),
    (16, 64, Population.UNIFORM): Peer(_SGLANG, 9.9),
    (16, 64, Population.SKEWED): Peer(_SGLANG, 10.1),
    (16, 64, Population.IDENTICAL): Peer(_VLLM, 8.5),
    (64, 8, Population.DISTINCT): Peer(_BGMV, 9.0),
    (64, 8, Population.UNIFORM): Peer(_BGMV, 8.7),
    (64, 8, Population.SKEWED): Peer(_BGMV, 8.8),
    (64, 8, Population.IDENTICAL): Peer(_BGMV, 8.6),
    (64, 32, Population.DISTINCT): Peer(_BGMV, 16.9),
    (64, 32, Population.UNIFORM): Peer(_SGLANG, 12.3),
    (64, 32, Population.SKEWED): Peer(_SGLANG, 12.7),
    (64, 32, Population.IDENTICAL): Peer(_VLLM, 9.6),
    (64, 64, Population.DISTINCT): Peer(_BGMV, 28.7),
    (64, 64, Population.UNIFORM): Peer(_SGLANG, 13.1),
    (64, 64, Population.SKEWED): Peer(_SGLANG, 13.9),
    (64, 64, Population.IDENTICAL): Peer(_VLLM, 10.7),
    (8, 64, Population.DISTINCT): Peer(_BGMV, 11.1),
    **{(16, 1, population): Peer(_BGMV, 6.7) for population in Population},
    **{(64, 1, population): Peer(_BGMV, 7.1) for population in Population},
}

#: 512 prefill rows of one adapter and 31 decodes of others, rank 16.
MIXED_STEP = Peer(_SGLANG, 18.5)

#: (batch, population) -> added to a Llama-2-7B layer by all seven projections at rank 16, with its side stream.
LAYER: dict[tuple[int, Population], Peer] = {
    (32, Population.DISTINCT): Peer(_SGLANG, 52.6),
    (64, Population.DISTINCT): Peer(_SGLANG, 88.1),
    (32, Population.UNIFORM): Peer(_SGLANG, 24.8),
    (64, Population.UNIFORM): Peer(_SGLANG, 29.4),
}

#: Goals in µs, where there are any, by the same keys.
PAIR_GOALS: dict[tuple[int, int, Population], float] = {
    **{(16, 1, population): 3.0 for population in Population},
    (16, 32, Population.DISTINCT): 5.5,
    (16, 64, Population.DISTINCT): 8.0,
    (16, 64, Population.UNIFORM): 5.0,
    (16, 64, Population.SKEWED): 5.0,
    (16, 64, Population.IDENTICAL): 5.0,
    (64, 64, Population.DISTINCT): 22.0,
}
MIXED_STEP_GOAL = 15.0
#: Mixed ranks over equal ranks of the same bytes.
MIXED_RANKS_GOAL_RATIO = 1.1
LAYER_GOALS: dict[tuple[int, Population], float] = {
    (32, Population.DISTINCT): 35.0,
    (64, Population.DISTINCT): 65.0,
    (32, Population.UNIFORM): 20.0,
    (64, Population.UNIFORM): 25.0,
}
