"""A PEFT folder: digest, configuration, tensors. Registration scans it; a worker reads it into memory.

The configuration determines the tensors and their shapes; the file must hold exactly those. Registration checks that
once, and workers rely on the AdapterRef and the file.
"""

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from pathlib import Path, PurePath
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from punica_serve.adapters.adapter import Adapter, AdapterLayout, TensorPlace
from punica_serve.adapters.base_copies import check_base_copies
from punica_serve.adapters.checksums import adapter_checksums, new_checksum
from punica_serve.adapters.file_reading import ReadBuffer, naming, read_and_hash, read_bytes
from punica_serve.adapters.layout import layout_of, modules_of_file, present_targets, scalings_of, weight_name
from punica_serve.adapters.matching import LoraTarget, Matches
from punica_serve.adapters.peft_config import PeftConfig, parse_peft_config
from punica_serve.adapters.safetensors_file import list_tensors, read_header, split_header
from punica_serve.adapters.stream_hash import Hasher, StreamHash
from punica_serve.adapters.targets import lora_targets
from punica_serve.adapters.text_tensors import TextTensors, text_tensors
from punica_serve.adapters.unsupported_weights import refuse_unsupported_weights
from punica_serve.adapters.weights_scan import ScannedTensor, scan_weights
from punica_serve.base_model.base_name import is_other_base
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected
from punica_serve.errors.plain_files import open_plain
from punica_serve.numbers import counted
from punica_serve.protocol import AdapterRef

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

#: Ends of the names of transformers' classes that generate text, and beginnings of those that stand for any of them.
_MODEL_CLASSES = ("ForCausalLM", "ForConditionalGeneration")
_ANY_MODEL = ("Auto", "Peft")

#: Number of cached layouts, one per kind of adapter: a cluster's adapters mostly come from one training program.
_MAX_LAYOUTS = 32

logger = logging.getLogger(__name__)

T = TypeVar("T")


def read_adapter(
    folder: Path, model: ModelConfig, *, strict_base: bool = False, called: str | None = None
) -> AdapterRef:
    """Reads and checks an unknown PEFT folder, without holding its weights in memory.

    Raises AdapterRejected, which names the file. Its message omits the folder, which clients know nothing of; its
    string form has it.

    An adapter trained on a base model of another name is served with a warning, or refused if ``strict_base``. So is
    one whose configuration names modules or layers that the base model lacks. Warnings name it ``called``, by default
    its folder.
    """
    called = called or str(folder)
    try:
        config_bytes = read_config(folder)
        with naming(folder / CONFIG_NAME):
            config = parse_for_base(config_bytes, model, strict_base=strict_base)
        with _open_weights(folder) as file:
            with naming(folder / WEIGHTS_NAME):
                num_bytes = os.fstat(file.fileno()).st_size
                header = read_header(file, num_bytes)
                tensors = list_tensors(header, num_bytes)
                text = text_tensors(tensors)
            with naming(folder / CONFIG_NAME):
                matches = _matches(config_bytes, model, text.stem)
            with naming(folder / WEIGHTS_NAME):
                targets = present_targets(matches.targets, text.tensors, model, may_lack=config.may_lack_modules)
                layout = layout_of(targets, text.tensors, model)
                weights_hash = scan_weights(file, header, _scanned(layout, targets, tensors))
                check_base_copies(folder / WEIGHTS_NAME, text.copies, model)
    except OSError as error:
        raise unreadable(error) from error
    except MemoryError as error:
        raise AdapterRejected(str(error), param=WEIGHTS_NAME, where=f"{folder}/") from error
    _warn_of_base_name(called, config, model)
    _warn(called, matches, text)
    digest = _digest(hashlib.sha256(config_bytes).digest(), weights_hash)
    uri, scalings = str(folder.resolve()), scalings_of(targets)
    invocation = config.alora_invocation_tokens or ()
    return AdapterRef(digest, uri, num_bytes, layout.ranks, scalings, invocation)


def load_adapter(ref: AdapterRef, model: ModelConfig, buffer: ReadBuffer | None = None) -> Adapter:
    """Reads a registered adapter again, into ``buffer`` if given, whose next use overwrites it.

    Raises AdapterRejected if the files are no longer the registered ones. OSError and MemoryError, which name the file,
    don't condemn the adapter: another attempt, or another host, may read it.
    """
    return begin_load(ref, model, buffer or ReadBuffer()).use(lambda adapter: adapter)


def begin_load(
    ref: AdapterRef,
    model: ModelConfig,
    buffer: ReadBuffer,
    helpers: Executor | None = None,
    checksums: bytes | None = None,
) -> "UnverifiedAdapter":
    """Reads a registered adapter's files, and hashes them meanwhile on ``helpers``. Raises as load_adapter does.

    With ``checksums``, which adapter_checksums made of files of the right digest, they take the digest's place.
    """
    folder = Path(ref.uri)
    config = read_config(folder)
    with naming(folder / WEIGHTS_NAME), open_plain(folder / WEIGHTS_NAME) as file:
        weights = buffer.take(os.fstat(file.fileno()).st_size)
        hasher: Hasher = hashlib.sha256() if checksums is None else new_checksum()
        stream = StreamHash(weights, hasher, helpers)
        num_bytes = read_and_hash(file, weights, stream)
    return UnverifiedAdapter(ref, model, config, weights[:num_bytes], stream, checksums)


@dataclass(frozen=True, slots=True)
class UnverifiedAdapter:
    """A registered adapter in memory, while its digest is still being computed. It is used once."""

    ref: AdapterRef
    model: ModelConfig
    config: bytes
    weights: npt.NDArray[np.uint8]
    #: The weights' SHA-256, or their checksum where ``checksums`` is given.
    stream: StreamHash
    checksums: bytes | None = None

    def use(self, use: Callable[[Adapter], T]) -> T:
        """Returns ``use(adapter)`` if the digest is that of the bytes checked at registration.

        Raises as load_adapter does; an error of ``use`` only if the bytes are right. The configuration is not parsed
        again: ``ref`` has what it means.
        """
        try:
            made = use(adapter_in(self.ref, self.model, self.weights))
        finally:
            self._verify()
        return made

    def _verify(self) -> None:
        weights_hash = self.stream.digest()
        if self.checksums is not None:
            if adapter_checksums(self.ref.digest, new_checksum(self.config).digest(), weights_hash) == self.checksums:
                return
            weights_hash = hashlib.sha256(self.weights.data).digest()
        if _digest(hashlib.sha256(self.config).digest(), weights_hash) != self.ref.digest:
            reason = "its files changed on disk since it was registered; restart or register it again"
            raise _changed(reason, Path(self.ref.uri))


def adapter_in(ref: AdapterRef, model: ModelConfig, weights: npt.NDArray[np.uint8]) -> Adapter:
    """A registered adapter in the memory of its weights, of which the header must have come. Its digest is not checked.

    Raises AdapterRejected for a header that differs from the registered one.
    """
    folder = Path(ref.uri)
    with naming(folder / WEIGHTS_NAME):
        layout = _registered_layout(split_header(weights), len(weights), ref.scalings, model)
    if layout.ranks != ref.ranks:
        reason = "the ranks of its tensors differ from those it was registered with; register it again"
        raise _changed(reason, folder)
    return Adapter(ref, layout, weights)


def unreadable(error: OSError) -> AdapterRejected:
    """The AdapterRejected for an ``error`` that names an adapter's unreadable file."""
    path = PurePath(error.filename)
    return AdapterRejected(f"{path.name}: can't be read: {error.strerror}", param=path.name, where=f"{path.parent}/")


def _changed(message: str, folder: Path) -> AdapterRejected:
    return AdapterRejected(message, param="digest", where=f"{folder}: ")


def _digest(config_hash: bytes, weights_hash: bytes) -> str:
    return hashlib.sha256(config_hash + weights_hash).hexdigest()


def parse_for_base(config: bytes, model: ModelConfig, *, strict_base: bool) -> PeftConfig:
    """Parses a configuration, and checks what it says about its base model. Raises AdapterRejected."""
    parsed = parse_peft_config(config)
    _check_base_class(parsed, model)
    if strict_base:
        _check_base_name(parsed, model)
    _check_invocation(parsed, model)
    return parsed


def read_config(folder: Path) -> bytes:
    """The configuration in a PEFT folder. Raises OSError, which names the file."""
    if not os.path.isdir(folder):  # unlike Path.is_dir, this returns False for a path that it may not access
        raise FileNotFoundError(errno.ENOENT, "no such folder, or not readable", str(folder / CONFIG_NAME))
    with naming(folder / CONFIG_NAME), open_plain(folder / CONFIG_NAME) as file:
        return read_bytes(file)


def _open_weights(folder: Path) -> BufferedReader:
    """The weights in a PEFT folder. Raises OSError, which names the file, and AdapterRejected for another format."""
    path = folder / WEIGHTS_NAME
    if not os.path.exists(path):
        refuse_unsupported_weights(os.listdir(folder), where=f"{folder}/")
    with naming(path):
        return open_plain(path)


def _check_base_class(config: PeftConfig, model: ModelConfig) -> None:
    """Refuses an adapter of another architecture, whose tensors may have the same names and sizes."""
    trained_on = config.auto_mapping.base_model_class if config.auto_mapping else None
    if trained_on is None or not trained_on.endswith(_MODEL_CLASSES) or trained_on.startswith(_ANY_MODEL):
        return
    if model.class_names and trained_on not in model.class_names:
        reason = f"says that it was trained on a {trained_on}, and the base model is a {model.class_names[0]}"
        advice = "serve it on its own base model, or set the field to null if both compute the same"
        raise AdapterRejected(f"`auto_mapping` {reason}; {advice}", param="auto_mapping")


def _check_base_name(config: PeftConfig, model: ModelConfig) -> None:
    if is_other_base(config.base_model_name_or_path, model.name):
        raise AdapterRejected(
            f"`base_model_name_or_path` is {config.base_model_name_or_path!r}, but the base model is {model.name!r};"
            " unset `strict_base` to serve the adapter anyway",
            param="base_model_name_or_path",
        )


def _warn_of_base_name(called: str, config: PeftConfig, model: ModelConfig) -> None:
    if config.base_model_name_or_path and is_other_base(config.base_model_name_or_path, model.name):
        told = "adapter %s: `base_model_name_or_path` is %r, and the base model is %r; `strict_base: true` refuses such"
        logger.warning(told, called, config.base_model_name_or_path, model.name)


def _check_invocation(config: PeftConfig, model: ModelConfig) -> None:
    unknown = next((token for token in config.alora_invocation_tokens or () if token >= model.vocab_size), None)
    if unknown is not None:
        reason = f"holds token id {unknown}, which is outside the base model's vocabulary of {model.vocab_size}"
        raise AdapterRejected(f"`alora_invocation_tokens` {reason}", param="alora_invocation_tokens")


def _warn(called: str, matches: Matches, text: TextTensors) -> None:
    for warning in matches.warnings:
        logger.warning("adapter %s: %s: %s", called, CONFIG_NAME, warning)
    if text.num_image_tensors:
        unused = counted(text.num_image_tensors, "tensor")
        logger.warning("adapter %s: %s has %s for images, which are not served", called, WEIGHTS_NAME, unused)


@lru_cache(_MAX_LAYOUTS)
def _matches(config: bytes, model: ModelConfig, stem: str) -> Matches:
    return lora_targets(parse_peft_config(config), model, stem)


@lru_cache(_MAX_LAYOUTS)
def _registered_layout(
    header: bytes, num_file_bytes: int, scalings: tuple[float, ...], model: ModelConfig
) -> AdapterLayout:
    text = text_tensors(list_tensors(header, num_file_bytes))
    return layout_of(modules_of_file(text, scalings, model), text.tensors, model)


def _scanned(
    layout: AdapterLayout, targets: Iterable[LoraTarget], tensors: Mapping[str, TensorPlace]
) -> Iterator[ScannedTensor]:
    """All tensors of the file: their bytes follow each other."""
    unscaled = dict(tensors)
    for target in targets:
        pair = layout.places[target.layer, target.module]
        a, b = weight_name(target.path, "A"), weight_name(target.path, "B")
        yield ScannedTensor(a, pair.a, 1.0, target.alpha)
        yield ScannedTensor(b, pair.b, target.scaling, target.alpha)
        del unscaled[a], unscaled[b]
    for name, place in unscaled.items():
        yield ScannedTensor(name, place, 1.0, 1.0)
