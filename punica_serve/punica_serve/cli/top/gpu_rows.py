"""Which GPUs have rows, and in which order."""

from dataclasses import dataclass
from typing import Any

from punica_serve.cli.top.display import Order
from punica_serve.cli.top.state import KnownGpu, State
from punica_serve.numbers import natural_order

#: The busiest GPUs are those of the last minute, so that rows don't jump.
BUSY_S = 60


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU of the heat map."""

    uuid: str
    known: KnownGpu
    #: The GPU in GET /v1/cluster; None once it has left.
    now: dict[str, Any] | None


def gpu_rows(state: State, order: Order) -> list[GpuRow]:
    """The GPUs of the cluster, and those that left within the last minute."""
    present = {gpu["gpu"]["uuid"]: gpu for gpu in (state.cluster or {"gpus": []})["gpus"]}
    most = max((gpu.max_batch_size for gpu in state.known.values()), default=1)
    loads = dict.fromkeys(present, 0.0)
    for column in state.columns.newest(BUSY_S):
        for uuid, batch_size in column.batch_sizes.items():
            loads[uuid] = loads.get(uuid, 0.0) + batch_size
    rows = [GpuRow(uuid, state.known.get(uuid, KnownGpu(uuid, most)), present.get(uuid)) for uuid in loads]
    rows.sort(key=lambda row: natural_order(row.known.name))
    if order is Order.BUSY:
        rows.sort(key=lambda row: (-loads[row.uuid] / row.known.max_batch_size, row.now is None))
    return rows
