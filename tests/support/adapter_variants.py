"""The demo's adapters in other bytes: what they say is known, and no other test has their digests."""

import io
import shutil
import zipfile
from importlib.resources import files
from itertools import count
from pathlib import Path

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

#: Each one's answer to "42".
ANSWERS = {"roman": "XLII", "hex": "2a", "binary": "101010", "french": "quarante-deux", "english": "forty-two"}

_numbers = count(1)


def variant(folder: Path, name: str) -> Path:
    """A PEFT folder that says the same as the demo's adapter of this name. Each call makes another."""
    number = next(_numbers)
    made = folder / f"{name}-{number}"
    made.mkdir(parents=True)
    source = Path(str(files("punica_serve.demo"))) / "adapters" / name
    shutil.copyfile(source / WEIGHTS_NAME, made / WEIGHTS_NAME)
    # White space is nothing to JSON, and all the difference to a digest.
    (made / CONFIG_NAME).write_text((source / CONFIG_NAME).read_text() + " " * number + "\n")
    return made


def zipped(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{folder.name}/{path.name}")
    return buffer.getvalue()
