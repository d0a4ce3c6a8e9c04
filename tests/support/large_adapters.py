"""Adapters of about a gigabyte that are on no disk, as uploads: a little of each is in memory at a time."""

import io
import json
import socket
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from itertools import accumulate
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.adapters.layout import weight_name
from punica_serve.adapters.targets import linear_modules
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig

_PIECE_BYTES = 1 << 20
_BOUNDARY = "boundary-of-the-form"
_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class LargeAdapter:
    """Float32 weights that are zeros, but for the last one."""

    config: bytes
    #: With the length before it.
    header: bytes
    num_data_bytes: int

    @classmethod
    def of(cls, model: ModelConfig, rank: int) -> "LargeAdapter":
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(model.linear_shapes)}
        shapes: dict[str, tuple[int, int]] = {}
        for _, module, path in linear_modules(model):
            num_out, num_in = model.linear_shapes[module]
            shapes |= {weight_name(path, "A"): (rank, num_in), weight_name(path, "B"): (num_out, rank)}
        ends = list(accumulate(4 * rows * columns for rows, columns in shapes.values()))
        header = {
            name: {"dtype": "F32", "shape": shape, "data_offsets": [end - 4 * shape[0] * shape[1], end]}
            for (name, shape), end in zip(shapes.items(), ends, strict=True)
        }
        text = json.dumps(header).encode()
        return cls(json.dumps(config).encode(), len(text).to_bytes(8, "little") + text, ends[-1])

    def form(self, last_value: float) -> "Upload":
        """Uploads of different last values have different digests."""
        start = _part(CONFIG_NAME) + self.config + b"\r\n" + _part(WEIGHTS_NAME) + self.header
        end = np.float32(last_value).tobytes() + f"\r\n--{_BOUNDARY}--\r\n".encode()
        return Upload(f"multipart/form-data; boundary={_BOUNDARY}", start, self.num_data_bytes - 4, end)

    def bomb(self) -> "Upload":
        """A zip archive of a megabyte, in which zeros stand for the header too."""
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            file.writestr(CONFIG_NAME, self.config)
            with file.open(WEIGHTS_NAME, "w") as weights:
                for zeros in _zeros(self.num_data_bytes):
                    weights.write(zeros)
        return Upload("application/zip", archive.getvalue(), 0, b"")


@dataclass(frozen=True, slots=True)
class Upload:
    """A body: ``start``, then zeros, then ``end``."""

    content_type: str
    start: bytes
    num_zeros: int
    end: bytes

    def send(self, url: str, name: str, headers: dict[str, str]) -> tuple[int, str]:
        """Status and body of the answer to POST /v1/adapters. Blocks, mostly in calls that release the GIL."""
        address = urlsplit(url)
        num_bytes = len(self.start) + self.num_zeros + len(self.end)
        lines = {**headers, "host": address.netloc, "content-type": self.content_type, "content-length": f"{num_bytes}"}
        head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        with socket.create_connection((address.hostname, address.port), _TIMEOUT_S) as connection:
            connection.sendall(f"POST /v1/adapters?name={name} HTTP/1.1\r\n{head}\r\n".encode() + self.start)
            for zeros in _zeros(self.num_zeros):
                connection.sendall(zeros)
            connection.sendall(self.end)
            answer = HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.read().decode()


def _part(name: str) -> bytes:
    return f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'.encode()


def _zeros(num_bytes: int) -> Iterator[memoryview]:
    piece = memoryview(bytes(_PIECE_BYTES))
    while num_bytes:
        taken = piece[:num_bytes]
        num_bytes -= len(taken)
        yield taken


def gigabyte_of(folder: Path) -> LargeAdapter:
    """An adapter for the model of a folder, of the highest rank that stays below a gigabyte."""
    model = read_model_config(folder)
    per_rank = LargeAdapter.of(model, 1).num_data_bytes
    return LargeAdapter.of(model, (1 << 30) // per_rank)
