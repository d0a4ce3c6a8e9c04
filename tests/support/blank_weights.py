"""A weight file of zeros with a model's tensors, or with others."""

import json
import math
from collections.abc import Mapping
from pathlib import Path


def write_blank_weights(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str] | None = None
) -> Path:
    """Two bytes for each number, which are a hole in the file; a tensor is of BF16 if ``dtypes`` has no other."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": (dtypes or {}).get(name, "BF16"), "shape": shape, "data_offsets": (begin, end)}
    encoded = json.dumps(header).encode()
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(file.tell() + end)
    return path
