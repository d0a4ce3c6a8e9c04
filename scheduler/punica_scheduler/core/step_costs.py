"""The performance model, as placements by cost ask it; ``performance.StepTimeColumns`` is one."""

from typing import Protocol

from punica_serve.performance.batch_columns import BatchColumns, Column
from punica_serve.performance.lora_load import AdapterSize


class StepCosts(Protocol):
    """Seconds of steps, an entry for each GPU."""

    @property
    def prefills_apart(self) -> bool:
        """Whether a step runs all waiting prefills together or the decodes, and not one prefill beside the decodes."""

    def decode_s(self, batches: BatchColumns) -> Column:
        """A step of each batch; 0 for an empty one."""

    def mixed_s(self, batches: BatchColumns, num_prefill_tokens: float) -> Column:
        """A step of each batch, which is not empty, with a prefill of so many tokens beside it.

        Where prefills run apart, the sum of the two steps.
        """

    def queue_s(self, num_tokens: Column) -> Column:
        """A step of prefills of so many tokens together, without LoRA; 0 for none."""

    def prefill_s(self, num_tokens: int, size: AdapterSize) -> float:
        """A step of one prefill alone; NO_ADAPTER runs the base model."""
