import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from punica_serve.adapters.adapter import HostTensor
from punica_serve.adapters.safetensors_file import MAX_HEADER_BYTES, list_tensors, split_header
from punica_serve.errors import AdapterRejected


def parse_safetensors(file: np.ndarray) -> dict[str, HostTensor]:
    return {name: place.of(file) for name, place in list_tensors(split_header(file), len(file)).items()}


def pack(header: object, data: bytes = b"") -> np.ndarray:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return np.frombuffer(bytearray(len(text).to_bytes(8, "little") + text + data), np.uint8)


def entry(begin: int, end: int, shape: Any = (1,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_safetensors_package_writes() -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones((4, 1), np.float16),
    }
    tensors = parse_safetensors(np.frombuffer(bytearray(save(arrays, {"format": "pt"})), np.uint8))
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {"a": "F32", "b": "F16"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name].array, array)


def test_tensors_are_views_of_the_file() -> None:
    file = np.frombuffer(bytearray(save({"a": np.zeros(4, np.float32)})), np.uint8)
    tensor = parse_safetensors(file)["a"]
    assert np.shares_memory(tensor.array, file)
    assert tensor.array.flags.writeable


def test_tensors_at_odd_addresses_are_aligned() -> None:
    header = json.dumps({"a": entry(0, 4)}).encode()
    header += b" " * (5 - len(header) % 8)
    tensor = parse_safetensors(pack(header, np.float32(7).tobytes()))["a"]
    assert tensor.array.flags.aligned
    assert tensor.array.tolist() == [7.0]


def test_an_empty_file_of_tensors_is_no_error() -> None:
    assert parse_safetensors(pack({"__metadata__": {"format": "pt"}})) == {}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (np.zeros(0, np.uint8), "truncated"),
        (np.zeros(1, np.uint8), "truncated to 1 byte$"),
        (np.zeros(7, np.uint8), "truncated to 7 bytes$"),
        (pack({"a": entry(0, 4)}, bytes(4))[:20], "truncated"),
        (pack({"a": entry(0, 4)}, bytes(3)), "truncated or has a tail"),
        (pack({"a": entry(0, 4)}, bytes(5)), "truncated or has a tail"),
        (np.frombuffer((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), np.uint8), "claims 2097153 bytes"),
        (np.full(64, 255, np.uint8), "not a safetensors file"),
        (pack(b"not json"), "not a safetensors header"),
        (pack(b"\xff\xff"), "not a safetensors header"),
        (pack(b'{"a":' + b"[" * 100_000), "not a safetensors header"),
        (pack([1]), "not a safetensors header"),
        (pack({"a": 1}), "not a safetensors header"),
        (pack({"a": {"dtype": "F32", "shape": [1]}}), "not a safetensors header"),
        (pack({"a": entry(0, 4, shape=[-1])}, bytes(4)), "not a safetensors header"),
        (pack({"a": entry(-4, 0)}, bytes(4)), "not a safetensors header"),
        (pack({"a": entry(4, 8)}, bytes(8)), "tensor `a` is at bytes 4 to 8, expected from 0"),
        (pack({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)), "tensor `b` is at bytes 2 to 6"),
        (pack({"a": entry(4, 0)}, bytes(4)), "tensor `a` is at bytes 4 to 0"),
        (pack({"a": entry(0, 4, shape=[2])}, bytes(4)), "tensor `a` has 4 bytes"),
        (pack({"a": entry(0, 4, shape=[1 << 62, 1 << 62])}, bytes(4)), "tensor `a` has 4 bytes"),
        (pack({"a": entry(0, 8, dtype="F64")}, bytes(8)), "tensor `a` has dtype F64"),
        (pack({"a": entry(0, 1, dtype="I8")}, bytes(1)), "tensor `a` has dtype I8"),
    ],
)
def test_broken_files_are_refused(file: np.ndarray, message: str) -> None:
    with pytest.raises(AdapterRejected, match=message):
        parse_safetensors(file)
