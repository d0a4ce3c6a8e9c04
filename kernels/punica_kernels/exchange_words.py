"""The tensors by which a step on a GPU and processes on the host exchange rows of a prefill, and the words in them.

A step's prefill rows go out before each LoRA projection whose weights have not arrived, and their LoRA comes back. Both
sides write words that only they write, and never the same word twice with the same value: the key of the step, which
grows, and the index of the exchange within it.
"""

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

#: Processes that one step may use: bits of a non-negative int32, rounded to a kernel's block.
MAX_PROCESSES = 32
#: Instead of a process's number once it has died; larger than any. The operating system's kernel writes it.
DEAD = 1 << 30
#: The key of a wait that nothing ends, by which the time of a look is measured.
NO_ARRIVAL_KEY = (1 << 31) - 1
#: Exchanges of one step: ``done_word`` leaves them 16 bits.
MAX_EXCHANGES = (1 << 16) - 1


class ExchangeField(IntEnum):
    """The int32 words of one step, on the device. A step that exchanges nothing has the key 0."""

    KEY = 0
    #: Rows of the prefill that are exchanged: the last ones before the decodes.
    NUM_ROWS = 1
    #: Bits of the projection groups that the adapter has.
    GROUPS = 2
    #: Bits of the processes that compute.
    PROCESSES = 3
    #: Where the arrival of the adapter's layers is written, and what.
    ARRIVAL_SLOT = 4
    ARRIVAL_NUMBER = 5
    #: Looks at the host's words that the step may take in all, and for one exchange, and has taken.
    MAX_LOOKS = 6
    MAX_LOOKS_FOR_ONE = 7
    NUM_LOOKS = 8
    #: Not 0 once a wait has ended without the host's answer.
    FAILED = 9


NUM_STEP_WORDS = len(ExchangeField)


def done_word(key: int, index: int) -> int:
    """The word that a process writes when it has written its part of the exchange ``index``, 0 or more."""
    return key * 65536 + index + 1


@dataclass(frozen=True, slots=True)
class ExchangeTensors:
    """Tensors of one device's exchanges. Those of the host are page-locked."""

    #: [numel]: rows of x, then of what is added, dense for the group at hand.
    host_x: Tensor
    host_delta: Tensor
    #: int32 [exchanges]: the key once x is there, or its negative if the device does this one by itself.
    host_sent: Tensor
    #: int64 [MAX_PROCESSES]: ``done_word`` of each process's newest part. Side by side, so that a look reads few lines.
    host_done: Tensor
    #: int64 [MAX_PROCESSES]: each process's number, 0 before it is ready, ``DEAD`` from its end on.
    host_pids: Tensor
    #: int32 [1]: the key of the last step that waited in vain.
    host_failed: Tensor
    #: int32 [NUM_STEP_WORDS]
    step: Tensor
    #: int32 [1]: the key while the host computes the exchange at hand. Zero at first, as ``counter`` is, int32 [1].
    owner: Tensor
    counter: Tensor
    #: int32 [slots, groups of layers]: the number of the copy that filled this group of layers.
    arrivals: Tensor
