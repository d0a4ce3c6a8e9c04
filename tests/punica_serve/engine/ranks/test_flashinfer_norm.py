"""The rows that FlashInfer's exchange refuses. Those that it takes need GPUs: `test_layer_exchange_gpu.py`."""

from typing import cast

import pytest
import torch

from punica_serve.engine.ranks.flashinfer_norm import FlashInferNorm
from punica_serve.engine.ranks.torch_collectives import TorchCollectives


@pytest.mark.parametrize(("max_bytes", "width"), [(128 << 20, 4096), (1 << 20, 5376), (1 << 20, 32)])
def test_rows_that_it_would_exchange_wrongly_are_refused(max_bytes: int, width: int) -> None:
    library = cast(TorchCollectives, object())  # it is not asked for anything
    with pytest.raises(RuntimeError, match=f"exchanges no {max_bytes:,} bytes in rows of {width} numbers"):
        FlashInferNorm(library, max_bytes, width, torch.bfloat16, torch.device("cuda"))
