"""The performance model, as placements by cost ask it; ``performance.StepTimeColumns`` is one."""

from typing import Protocol

from punica_serve.performance.batch_columns import BatchColumns, Column
from punica_serve.performance.lora_load import AdapterSize, LoraLoad


class StepCosts(Protocol):
    """Seconds of steps."""

    @property
    def prefills_apart(self) -> bool:
        """Whether a step runs all waiting prefills together or the decodes, and not prefills beside the decodes."""

    def step_s(self, num_prefill_tokens: float, num_decodes: int, num_context_tokens: float, lora: LoraLoad) -> float:
        """A step; 0 for an empty one. ``num_context_tokens`` is the sum over all decodes.

        ``num_prefill_tokens`` stand at the beginnings of their prompts: see ``PrefillBudget.equivalent_tokens``.
        """

    def decode_s(self, batches: BatchColumns) -> Column:
        """A step of each batch; 0 for an empty one."""

    def queue_s(self, num_tokens: Column) -> Column:
        """A step of prefills of so many tokens together, without LoRA; 0 for none."""

    def prefill_s(self, num_tokens: float, size: AdapterSize) -> float:
        """A step of one prefill alone; NO_ADAPTER runs the base model."""
