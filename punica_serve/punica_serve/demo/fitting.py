"""The demo's training loop: cross entropy, clipped gradients, a learning rate that rises briefly and falls to zero."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from punica_serve.demo.examples import Batch

_WARMUP_SHARE = 0.05
_MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Source:
    """Batches of (input_ids, labels) that join the loss from a given step on; each source counts as one mean."""

    batches: Iterator[Batch]
    first_step: int = 0


def base_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, which needs a third of AdamW's steps here; AdamW for the rest."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in named if weight.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def adapter_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """AdamW for the LoRA weights, the only ones that need a gradient."""
    return [torch.optim.AdamW(_trainable(model), lr=5e-3, betas=(0.9, 0.98), weight_decay=0.0)]


def fit(
    model: nn.Module,
    sources: Sequence[Source],
    optimizers: Sequence[torch.optim.Optimizer],
    num_steps: int,
    on_step: Callable[[float], None],
) -> None:
    """Trains ``model`` in place. Calls ``on_step`` with the loss after every step."""
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _learning_rate_share(step, num_steps))
        for optimizer in optimizers
    ]
    weights = _trainable(model)
    model.train()
    for step in range(num_steps):
        loss = _accumulate_gradients(model, [source for source in sources if source.first_step <= step])
        nn.utils.clip_grad_norm_(weights, _MAX_GRADIENT_NORM)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        on_step(loss)
    model.eval()


def _accumulate_gradients(model: nn.Module, sources: Sequence[Source]) -> float:
    total = 0.0
    for source in sources:
        input_ids, labels = next(source.batches)
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        total += loss.item()
    return total


def _learning_rate_share(step: int, num_steps: int) -> float:
    return min(1.0, (step + 1) / (_WARMUP_SHARE * num_steps)) * (1 - step / num_steps)


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]
