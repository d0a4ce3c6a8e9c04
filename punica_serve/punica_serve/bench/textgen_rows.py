"""The rows of the text generation benchmark: their requests, adapters and policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np
from msgspec import structs

from punica_serve.bench.driver import MaxConcurrency, Policy, SameAdapterOnly, StaticBatches
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.workload import Population, RequestLength, Workload

_PROMPT_SEED = 20231028
_GREEDY = SamplingParams(ignore_eos=True)
#: How the row ``filtered`` samples.
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class TextgenRow:
    """One population under one policy."""

    name: str
    #: None means the base model alone.
    population: Population | None
    #: queued: all wait in the engine from the start. alone: one at a time.
    policy: Literal["queued", "alone", "static", "same_adapter"] = "queued"
    #: Where its adapters are at the start.
    source: Literal["host", "files"] = "host"
    #: Uses only this many of the first requests, to save time or disk space.
    max_requests: int | None = None
    #: Its adapters are on the device before the clock starts.
    resident: bool = False
    #: Its tokens are sampled with temperature, top_k and top_p instead of taken greedily.
    filtered: bool = False

    def num_requests(self, asked: int) -> int:
        return asked if self.max_requests is None else min(asked, self.max_requests)

    def indices(self, workload: Workload) -> list[int]:
        """The adapter of each of its requests; empty without adapters."""
        if self.population is None:
            return []
        count = self.num_requests(len(workload.lengths))
        return list(workload.adapters[self.population][:count])

    def start(self, requests: Sequence[Request], batch_size: int) -> Policy:
        """The row's policy over these requests."""
        match self.policy:
            case "queued":
                return MaxConcurrency(requests)
            case "alone":
                return MaxConcurrency(requests, limit=1)
            case "static":
                return StaticBatches(requests, batch_size)
            case "same_adapter":
                return SameAdapterOnly(requests, batch_size)


_ALL = (
    TextgenRow("distinct", Population.DISTINCT),
    TextgenRow("uniform", Population.UNIFORM),
    TextgenRow("skewed", Population.SKEWED),
    TextgenRow("identical", Population.IDENTICAL),
    TextgenRow("backbone", None),
    TextgenRow("filtered", None, filtered=True),
    TextgenRow("distinct_300", Population.DISTINCT, max_requests=300),
    TextgenRow("files", Population.DISTINCT, source="files", max_requests=300),
    # No loads needed: fifty adapters fit the device.
    TextgenRow("distinct_50", Population.DISTINCT, max_requests=50, resident=True),
    TextgenRow("same_adapter_only", Population.DISTINCT, "same_adapter", max_requests=50, resident=True),
    TextgenRow("distinct_320", Population.DISTINCT, max_requests=320),
    TextgenRow("static", Population.DISTINCT, "static", max_requests=320),
    *(TextgenRow(f"{p.value}_alone", p, "alone", max_requests=4, resident=True) for p in Population),
)

ROWS: dict[str, TextgenRow] = {row.name: row for row in _ALL}

#: Row -> the row to compare it with: the same requests in the engine's own way, with their adapters in the same place,
#: except for files. ``filtered`` differs in sampling alone. Fewer requests end with a longer tail of small batches, so
#: rows of different lengths can't be compared.
COUNTERPARTS = {
    "filtered": "backbone",
    "files": "distinct_300",
    "same_adapter_only": "distinct_50",
    "static": "distinct_320",
}

#: Runs without our engine, and only if its libraries are installed.
PEFT_ROW = "transformers_peft"

GPU_ROWS = (
    "distinct",
    "uniform",
    "skewed",
    "identical",
    "backbone",
    "static",
    "files",
    # Last, since it leaves the first adapters on the device.
    "same_adapter_only",
)

CPU_ROWS = (*(p.value for p in Population), *(f"{p.value}_alone" for p in Population))


def parse_rows(names: str | None, *, on_gpu: bool, with_peft: bool = True) -> tuple[str, ...]:
    """Parses names separated by commas; the default suits the device. Each comes with its counterpart.

    Raises ConfigError for an unknown name, and for PEFT's row without ``with_peft``: it has no ranks.
    """
    if names is None:
        peft_rows = _peft_rows() if with_peft else ()
        return _with_counterparts((*GPU_ROWS, *peft_rows) if on_gpu else CPU_ROWS)
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in chosen:
        if name not in ROWS and name != PEFT_ROW:
            raise ConfigError(f"row {name!r} does not exist; there are {', '.join((*ROWS, PEFT_ROW))}", param="rows")
    if PEFT_ROW in chosen and not with_peft:
        raise ConfigError(f"row {PEFT_ROW!r} runs the whole model; leave it out, or leave out `--shard`", param="rows")
    return _with_counterparts(chosen)


def _with_counterparts(names: Sequence[str]) -> tuple[str, ...]:
    """Adds each row's counterpart before it."""
    pairs = ((COUNTERPARTS[name], name) if name in COUNTERPARTS else (name,) for name in names)
    return tuple(dict.fromkeys(name for pair in pairs for name in pair))


def _peft_rows() -> tuple[str, ...]:
    return (PEFT_ROW,) if find_spec("transformers") and find_spec("peft") else ()


def requests_of(
    row: TextgenRow, workload: Workload, adapters: Sequence[AdapterRef], *, vocab_size: int, run: str
) -> list[Request]:
    """The row's requests in order of arrival, of exact lengths. ``run`` keeps their names distinct."""
    lengths = workload.lengths[: row.num_requests(len(workload.lengths))]
    refs: list[AdapterRef | None] = [adapters[index] for index in row.indices(workload)]
    refs = refs or [None] * len(lengths)
    tokens, sampling = np.random.default_rng(_PROMPT_SEED), FILTERED if row.filtered else _GREEDY
    return [
        Request(
            f"{run}-{number}",
            number,
            tuple(tokens.integers(vocab_size, size=length.prompt).tolist()),
            structs.replace(sampling, max_tokens=length.output, seed=number),
            ref,
        )
        for number, (length, ref) in enumerate(zip(lengths, refs, strict=True))
    ]


def fit(workload: Workload, max_context: int) -> Workload:
    """The same requests, with the longest cut to fit a small model."""
    outputs = [min(length.output, max_context // 2) for length in workload.lengths]
    prompts = [length.prompt for length in workload.lengths]
    lengths = [RequestLength(min(p, max_context - out), out) for p, out in zip(prompts, outputs, strict=True)]
    return Workload(tuple(lengths), workload.adapters)
