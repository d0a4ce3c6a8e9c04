"""Weights in formats that are never read, with advice for their owners."""

import re
from collections.abc import Iterable

from punica_serve.errors import AdapterRejected

#: PEFT's file before it supported safetensors.
_PICKLE_NAME = "adapter_model.bin"

#: Names that transformers and others give to a model's shards. PEFT reads none of them.
_SHARD = re.compile(r"adapter_model(-\d+-of-\d+\.safetensors|\.safetensors\.index\.json)")


def refuse_unsupported_weights(names: Iterable[str], *, where: str = "") -> None:
    """Raises AdapterRejected if one of these files holds weights in another format; the log entry names ``where``."""
    for name in sorted(names):
        if name == _PICKLE_NAME:
            advice = (
                "pickles are never read; convert it with PEFT: PeftModel.from_pretrained(base, folder)"
                ".save_pretrained(folder) writes adapter_model.safetensors"
            )
        elif _SHARD.fullmatch(name):
            advice = (
                "split adapters are not read, nor does PEFT read them; put all tensors into one file: load each part"
                " with safetensors.torch's load_file, and save_file them together as adapter_model.safetensors"
            )
        else:
            continue
        raise AdapterRejected(f"{name}: {advice}", param=name, where=where)
