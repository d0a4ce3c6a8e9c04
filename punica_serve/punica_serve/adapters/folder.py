"""A PEFT folder, read once: digest, configuration, tensors.

The configuration says which tensors there must be, and of which shape; the file must hold exactly those.
"""

import errno
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Literal

import numpy as np
import numpy.typing as npt

from punica_serve.adapters.adapter import Adapter, AdapterLayout, HostTensor, PairPlace, TensorPlace
from punica_serve.adapters.peft_config import PeftConfig, parse_peft_config
from punica_serve.adapters.safetensors_file import list_tensors, split_header
from punica_serve.adapters.targets import LoraTarget, lora_targets
from punica_serve.counted import counted
from punica_serve.errors import AdapterRejected
from punica_serve.model_config import ModelConfig
from punica_serve.plain_files import open_plain
from punica_serve.protocol import AdapterRef

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_PICKLE_NAME = "adapter_model.bin"

#: A larger file is rare, and its memory goes back after it.
_MAX_REUSED_BYTES = 256 << 20
#: Kinds of adapters whose layouts are remembered: those of one cluster mostly come from one training program.
_MAX_LAYOUTS = 32

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Files:
    """Both files' bytes, and what they amount to."""

    config: bytes
    weights: npt.NDArray[np.uint8]
    digest: str


class ReadBuffer:
    """Memory that one file after another is read into, each over the one before. Not for two threads at once.

    Fresh memory costs as much as the reading: the kernel clears every page of it.
    """

    def __init__(self) -> None:
        self._bytes: npt.NDArray[np.uint8] | None = None

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        if num_bytes > _MAX_REUSED_BYTES:
            return np.empty(num_bytes, dtype=np.uint8)
        if self._bytes is None or num_bytes > len(self._bytes):
            self._bytes = np.empty(num_bytes, dtype=np.uint8)
        return self._bytes[:num_bytes]


def read_adapter(folder: Path, model: ModelConfig, *, strict_base: bool = False, called: str | None = None) -> Adapter:
    """Reads and checks a PEFT folder that has not been seen before. Raises AdapterRejected, which names the file.

    Its message leaves out the folder, of which clients know nothing; as a string it has it.

    An adapter trained on a base model of another name is served with a warning, or refused when ``strict_base``. In
    the warning it is ``called`` so; by default, as its folder.
    """
    try:
        files = _read_files(folder, ReadBuffer())
        with _naming(folder / CONFIG_NAME):
            config = parse_peft_config(files.config)
            _check_base_name(config, model, called=called or str(folder), strict=strict_base)
        adapter = _build(folder, files, model)
        with _naming(folder / WEIGHTS_NAME):
            _check_finite(adapter, _targets(files.config, model))
        return adapter
    except OSError as error:
        raise unreadable(error) from error
    except MemoryError as error:
        raise AdapterRejected(str(error), param=WEIGHTS_NAME, where=f"{folder}/") from error


def load_adapter(ref: AdapterRef, model: ModelConfig, buffer: ReadBuffer | None = None) -> Adapter:
    """Reads a registered adapter again, into ``buffer`` if there is one: whose next use ends this adapter's.

    Its digest says that these are the bytes whose values were checked when it was registered.

    Raises AdapterRejected when its files are no longer the registered ones. OSError and MemoryError, which name the
    file, say nothing of the adapter: another try, or another host, may read it.
    """
    folder = Path(ref.uri)
    files = _read_files(folder, buffer or ReadBuffer())
    if files.digest != ref.digest:
        raise AdapterRejected(
            "its files changed on disk since it was registered; restart or register it again",
            param="digest",
            where=f"{folder}: ",
        )
    return _build(folder, files, model)


def unreadable(error: OSError) -> AdapterRejected:
    """For an ``error`` that names the file of an adapter that can't be read."""
    path = PurePath(error.filename)
    return AdapterRejected(f"{path.name}: can't be read: {error.strerror}", param=path.name, where=f"{path.parent}/")


def weight_name(path: str, side: Literal["A", "B"]) -> str:
    """The name that PEFT saves half of a module's update under."""
    return f"base_model.model.{path}.lora_{side}.weight"


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Puts the file in front of whatever is wrong with it, or with reading it."""
    try:
        yield
    except AdapterRejected as error:
        message, where = f"{path.name}: {error.message}", f"{path.parent}/"
        raise AdapterRejected(message, param=error.param or path.name, where=where) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    except MemoryError as error:
        raise MemoryError(f"{path.name}: {error}") from error


def _read_files(folder: Path, buffer: ReadBuffer) -> _Files:
    if not os.path.isdir(folder):  # where Path's own raises on a path it may not look at, this says no
        raise FileNotFoundError(errno.ENOENT, "no such folder, or not readable", str(folder / CONFIG_NAME))
    config = _read_bytes(folder / CONFIG_NAME, ReadBuffer()).tobytes()
    if not os.path.exists(folder / WEIGHTS_NAME) and os.path.exists(folder / _PICKLE_NAME):
        raise AdapterRejected(
            f"{_PICKLE_NAME}: pickles are never read; convert it with PEFT: PeftModel.from_pretrained(base,"
            f" folder).save_pretrained(folder) writes {WEIGHTS_NAME}",
            param=_PICKLE_NAME,
            where=f"{folder}/",
        )
    weights = _read_bytes(folder / WEIGHTS_NAME, buffer)
    digests = hashlib.sha256(config).digest() + hashlib.sha256(weights.data).digest()
    return _Files(config, weights, hashlib.sha256(digests).hexdigest())


def _read_bytes(path: Path, buffer: ReadBuffer) -> npt.NDArray[np.uint8]:
    """The file in an aligned, writable array, which torch can take as it is: it warns of memory that is not writable.

    numpy's own reader takes a failing disk for the end of the file.
    """
    with _naming(path), open_plain(path) as file:
        content = buffer.take(os.fstat(file.fileno()).st_size)
        return content[: file.readinto(content.data)]


def _check_base_name(config: PeftConfig, model: ModelConfig, *, called: str, strict: bool) -> None:
    """Shapes decide whether an adapter fits; its base's name, a path or a Hub id, only hints. The last parts count."""
    trained_on = config.base_model_name_or_path
    if PurePath(trained_on or "").name == PurePath(model.name).name:
        return
    if strict:
        raise AdapterRejected(
            f"`base_model_name_or_path` is {trained_on!r}, the base model is {model.name!r}; unset `strict_base` to"
            " serve the adapter all the same",
            param="base_model_name_or_path",
        )
    if trained_on:
        logger.warning("adapter %s was trained on %r and is served on %r", called, trained_on, model.name)


def _build(folder: Path, files: _Files, model: ModelConfig) -> Adapter:
    with _naming(folder / CONFIG_NAME):
        _targets(files.config, model)
    with _naming(folder / WEIGHTS_NAME):
        layout = _layout(files.config, split_header(files.weights), len(files.weights), model)
    uri, num_bytes = str(folder.resolve()), len(files.weights)
    ref = AdapterRef(digest=files.digest, uri=uri, num_bytes=num_bytes, ranks=layout.ranks)
    return Adapter(ref, layout, files.weights)


@lru_cache(_MAX_LAYOUTS)
def _targets(config: bytes, model: ModelConfig) -> list[LoraTarget]:
    return lora_targets(parse_peft_config(config), model)


@lru_cache(_MAX_LAYOUTS)
def _layout(config: bytes, header: bytes, num_file_bytes: int, model: ModelConfig) -> AdapterLayout:
    targets = _targets(config, model)
    tensors = list_tensors(header, num_file_bytes)
    _check_names(tensors, targets, model)
    return AdapterLayout.of({(target.layer, target.module): _pair(target, tensors, model) for target in targets})


def _check_names(tensors: Mapping[str, TensorPlace], targets: list[LoraTarget], model: ModelConfig) -> None:
    """The file holds both halves of every target, and nothing else."""
    expected = [weight_name(target.path, side) for target in targets for side in ("A", "B")]
    unexpected = sorted(tensors.keys() - set(expected))
    for name in expected:
        if name not in tensors:
            instead = f"; instead there is `{unexpected[0][:200]}`" if unexpected else ""
            raise AdapterRejected(
                f"tensor `{name}` is missing, though {CONFIG_NAME} targets its module{instead}", param=name
            )
    if unexpected:
        raise AdapterRejected(
            f"tensor `{unexpected[0][:200]}` is not a lora_A or lora_B weight of a module that {CONFIG_NAME} targets in"
            f" the base model's {counted(model.num_hidden_layers, 'layer')}",
            param=unexpected[0],
        )


def _pair(target: LoraTarget, tensors: Mapping[str, TensorPlace], model: ModelConfig) -> PairPlace:
    num_out, num_in = model.linear_shapes[target.module]
    a = _checked(weight_name(target.path, "A"), tensors, (target.rank, num_in))
    b = _checked(weight_name(target.path, "B"), tensors, (num_out, target.rank))
    return PairPlace(a, b, target.scaling)


def _checked(name: str, tensors: Mapping[str, TensorPlace], shape: tuple[int, int]) -> TensorPlace:
    tensor = tensors[name]
    if tensor.shape != shape:
        raise AdapterRejected(
            f"tensor `{name}` has shape {list(tensor.shape)}; the configuration's rank and the base model's"
            f" projection need {list(shape)}",
            param=name,
        )
    return tensor


def _check_finite(adapter: Adapter, targets: list[LoraTarget]) -> None:
    for target in targets:
        pair = adapter.layout.places[target.layer, target.module]
        for name, place in ((weight_name(target.path, "A"), pair.a), (weight_name(target.path, "B"), pair.b)):
            if not place.of(adapter.file).is_finite():
                raise AdapterRejected(f"tensor `{name}` holds NaN or infinity", param=name)
        _check_scaled(pair.b.of(adapter.file), target)


def _check_scaled(b: HostTensor, target: LoraTarget) -> None:
    """The engine folds the scaling into B. A scaling that is no float32 itself can't even scale zero."""
    if abs(target.scaling) > 1.0:
        largest = max(float(np.abs(b.float32()).max(initial=0.0)), 1.0)
        if abs(target.scaling) * largest > float(np.finfo(np.float32).max):
            raise AdapterRejected(
                f"tensor `{weight_name(target.path, 'B')}` times its scaling of {target.scaling:g}, of an alpha of"
                f" {target.alpha:g}, is too large for any number format",
                param="lora_alpha",
            )
