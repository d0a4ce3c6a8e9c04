import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in every run, whichever tests run."""
    torch.manual_seed(0)
