"""Checks the arguments of ``LLM`` before anything runs. Errors name the argument and say what it must be."""

import os
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import TypeIs

from punica_serve.adapters.adapter_limits import limit_settings
from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.config.device_groups import neighbours
from punica_serve.engine.request_check import check_sampling
from punica_serve.errors import ConfigError, InvalidRequest
from punica_serve.learned_types import learned
from punica_serve.numbers import counted
from punica_serve.protocol import SamplingParams

Prompt = str | Sequence[int]

_FOLDER = "a path, or `demo:NAME`"
_MESSAGES = "`messages` must be a list such as [{'role': 'user', 'content': '42'}]"


def cluster_of(model: object, adapters: object, strict_base: object, settings: Mapping[str, Any]) -> ClusterConfig:
    """The config that LLM's arguments make, with limits that let in its adapters. Raises ConfigError."""
    adapters = {} if adapters is None else adapters
    if not isinstance(adapters, Mapping):
        example = "names with their folders, such as {'roman': 'demo:adapters/roman'}"
        raise ConfigError(f"`adapters` must be {example}, got {reprlib.repr(adapters)}", param="adapters")
    document = {
        "engine": {"model": _folder("model", model), **settings},
        "adapters": {name: _folder(f"adapters.{name}", folder) for name, folder in adapters.items()},
        "strict_base": strict_base,
    }
    cluster = parse_config(document, source="LLM", folder=Path.cwd())
    limits = {key: value for key, value in limit_settings(cluster.adapters.values()).items() if key not in settings}
    return cluster.model_copy(update={"engine": cluster.engine.model_copy(update=limits)})


def device_of(device: object, tensor_parallel: object) -> str:
    """The engine's device: a group of them if there is more than one, from ``device`` on.

    Raises ConfigError for what is no name or number. Whether there are such devices, the engine finds out.
    """
    if not isinstance(device, str):
        raise ConfigError(f"`device` must be 'cpu' or 'cuda:N', got {reprlib.repr(device)}", param="device")
    if type(tensor_parallel) is not int or tensor_parallel < 1:  # True is an int too
        words = f"`tensor_parallel` must be a number of devices, got {reprlib.repr(tensor_parallel)}"
        raise ConfigError(words, param="tensor_parallel")
    if tensor_parallel == 1:
        return device
    if "," in device:
        words = "give `tensor_parallel`, or several names in `device`, not both"
        raise ConfigError(words, param="tensor_parallel")
    return neighbours(device, tensor_parallel)


def list_of_prompts(prompts: object) -> list[Prompt]:
    """One text, or one list of token ids, is one prompt. Raises InvalidRequest."""
    if isinstance(prompts, str) or (_is_list(prompts) and prompts and all(map(_is_id, prompts))):
        prompts = [prompts]
    if not _is_list(prompts):
        raise _wrong("prompts", "a text, a list of token ids, or a list of these", prompts)
    return [_prompt(f"prompts.{index}", prompt) for index, prompt in enumerate(prompts)]


def list_of_lora_ids(lora_ids: object, num_prompts: int) -> list[str | None]:
    """One each. Raises InvalidRequest."""
    return _one_each("lora_ids", lora_ids, num_prompts, (str, type(None)), "an adapter's name, or None for the base")


def list_of_params(params: object, num_prompts: int) -> list[SamplingParams]:
    """One each, with numbers for numbers, in their ranges. Raises InvalidRequest."""
    params = SamplingParams() if params is None else params
    if isinstance(params, SamplingParams):
        return [_checked(params)] * num_prompts
    checked = []
    for index, each in enumerate(_one_each("params", params, num_prompts, (SamplingParams,), "a SamplingParams")):
        with naming("params", index, num_prompts):
            checked.append(_checked(each))
    return checked


def list_of_stops(stop: object) -> tuple[str, ...]:
    """Raises InvalidRequest."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not _is_list(stops) or not all(isinstance(each, str) for each in stops):
        raise _wrong("stop", "a text, or a list of texts", stop)
    if "" in stops:
        raise InvalidRequest("`stop` holds an empty string, which would end every answer at once", param="stop")
    return tuple(stops)


def check_messages(messages: object) -> None:
    """Raises InvalidRequest. Other fields of a message are left to the chat template."""
    if not _is_list(messages) or not messages:
        raise InvalidRequest(f"{_MESSAGES}, got {reprlib.repr(messages)}", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InvalidRequest(f"{_MESSAGES}; the one at {index} is {reprlib.repr(message)}", param="messages")


@contextmanager
def naming(argument: str, index: int, count: int) -> Iterator[None]:
    """Adds the index of the argument to an InvalidRequest."""
    try:
        yield
    except InvalidRequest as error:
        if count == 1:
            raise
        place = f"{argument}.{index}"
        raise InvalidRequest(f"`{place}`: {error.message}", param=place) from error


def _folder(name: str, folder: object) -> str:
    if not isinstance(folder, str | os.PathLike):
        raise ConfigError(f"`{name}` must be {_FOLDER}, got {reprlib.repr(folder)}", param=name)
    return os.fsdecode(folder)


def _prompt(name: str, prompt: Any) -> Prompt:
    """Raises InvalidRequest. Whether its ids are in the vocabulary, the engine finds out."""
    if not isinstance(prompt, str) and not (_is_list(prompt) and all(map(_is_id, prompt))):
        raise _wrong(name, "a text, or a list of token ids", prompt)
    if not prompt:
        raise InvalidRequest(f"`{name}`: the prompt is empty; give at least one character or token", param=name)
    if isinstance(prompt, str) and not _is_unicode(prompt):
        raise _wrong(name, "a text of whole characters, without halves of surrogate pairs", prompt)
    return prompt


def _one_each(name: str, values: object, count: int, kinds: tuple[type, ...], what: str) -> list[Any]:
    """One value for all becomes one each. Raises InvalidRequest if there are more or fewer than prompts."""
    if isinstance(values, kinds):
        return [values] * count
    if not _is_list(values):
        raise _wrong(name, f"{what}, or a list of one for each prompt", values)
    if len(values) != count:
        message = f"`{name}` has length {len(values)}, for {counted(count, 'prompt')}; give one, or one each"
        raise InvalidRequest(message, param=name)
    for index, value in enumerate(values):
        if not isinstance(value, kinds):
            raise _wrong(f"{name}.{index}", what, value)
    return list(values)


def _checked(params: SamplingParams) -> SamplingParams:
    """Structs take whatever they are made of."""
    values = msgspec.structs.astuple(params)
    try:
        converted = msgspec.convert(values, learned(SamplingParams))
    except msgspec.ValidationError as error:
        # For example "Expected `int`, got `str` - at `$[8][0]`", about the first item of the ninth field.
        reason, _, place = str(error).partition(" - at `$[")
        index = int(place.partition("]")[0])
        name = params.__struct_fields__[index]
        message = f"`{name}` of SamplingParams is {reprlib.repr(values[index])}: {reason[0].lower()}{reason[1:]}"
        raise InvalidRequest(message, param=name) from error
    check_sampling(converted)
    return converted


def _wrong(name: str, what: str, got: object) -> InvalidRequest:
    return InvalidRequest(f"`{name}` must be {what}, got {reprlib.repr(got)}", param=name)


def _is_list(value: object) -> TypeIs[Sequence[Any]]:
    """Texts and bytes are sequences, too."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_id(value: object) -> bool:
    return type(value) is int


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
