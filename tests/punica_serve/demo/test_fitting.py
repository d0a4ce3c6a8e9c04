import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from punica_serve.demo.examples import Batch
from punica_serve.demo.fitting import Source, adapter_optimizers, base_optimizers, fit


class Line(nn.Module):
    """The smallest model of transformers' shape: called with ids and labels, answers with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 8)
        self.matrix = nn.Linear(8, 4)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        logits = self.matrix(self.embed(input_ids))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def test_fit_learns_and_reports_every_step() -> None:
    torch.manual_seed(0)
    model = Line()
    batch = (torch.tensor([[0, 1, 2, 3]]), torch.tensor([[1, 2, 3, 0]]))
    losses: list[float] = []
    fit(model, [Source(itertools.repeat(batch))], base_optimizers(model), 60, losses.append)
    assert len(losses) == 60
    assert losses[-1] < 0.5 * losses[0]
    assert not model.training


def test_a_source_joins_at_its_step() -> None:
    taken: list[str] = []

    def source(name: str) -> Iterator[Batch]:
        while True:
            taken.append(name)
            yield torch.tensor([[0]]), torch.tensor([[1]])

    model = Line()
    fit(model, [Source(source("a")), Source(source("b"), first_step=2)], base_optimizers(model), 3, lambda loss: None)
    assert taken == ["a", "a", "a", "b"]


def test_frozen_weights_stay() -> None:
    model = Line()
    model.embed.requires_grad_(False)
    before = model.embed.weight.clone()
    batch = (torch.tensor([[0, 1]]), torch.tensor([[1, 2]]))
    fit(model, [Source(itertools.repeat(batch))], adapter_optimizers(model), 3, lambda loss: None)
    assert model.embed.weight.equal(before)
