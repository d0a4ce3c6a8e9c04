"""The refusal of an adapter folder, and who is told where the folder is."""

from pathlib import Path
from typing import Any

import pytest

from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected


def refusal(folder: Path, model: ModelConfig, **options: Any) -> AdapterRejected:
    with pytest.raises(AdapterRejected) as caught:
        read_adapter(folder, model, **options)
    assert str(caught.value) == f"{caught.value.where}{caught.value.message}"
    assert str(folder) in caught.value.where, "the log says where it is"
    assert str(folder) not in caught.value.message, "clients are not told where it is"
    return caught.value
