"""Validates an untrusted folder and returns the registry's record of the adapter in it, or raises an error that says
why not.

Fails closed: layout and values are checked by the code that workers load adapters with. An accepted adapter is applied
exactly as by PEFT.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from punica_serve.adapters.early_checks import check_config
from punica_serve.adapters.folder import CONFIG_NAME, read_adapter
from punica_serve.adapters.peft_config import parse_peft_config
from punica_serve.adapters.pool_fit import check_fits_pool
from punica_serve.base_model.lora_layout import LoraLimits
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef
from punica_serve.store.adapter_files import ADAPTER_FILES, TEMPLATE_NAME, TOKENIZER_NAME, check_file_size
from punica_serve.store.threads import StoreThreads

_MAX_TEMPLATE_CHARACTERS = 64 << 10


@dataclass(frozen=True, slots=True)
class ValidatedAdapter:
    """An adapter that may be registered. The ref's uri is the folder that was checked."""

    ref: AdapterRef
    #: The base model that its owner says it was trained on.
    base_model: str | None
    #: Its own chat template, if any: not rendered yet, and not to be trusted.
    chat_template: str | None


class AdapterValidator:
    """Checks adapters, a few at a time."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        strict_base: bool,
        num_lora_pages: int,
        limits: LoraLimits,
        max_adapter_bytes: int,
        num_threads: int,
        timeout_s: float,
    ) -> None:
        """``num_threads`` adapters are read and checked at once; a regular expression may hold one for seconds."""
        self._model = model
        self._strict_base = strict_base
        self._num_lora_pages = num_lora_pages
        self._limits = limits
        self._max_adapter_bytes = max_adapter_bytes
        self._timeout_s = timeout_s
        self._threads = StoreThreads(num_threads, "checking the adapter")

    def check_config(self, folder: Path) -> None:
        """Checks the configuration alone, before the weights are there. Blocks for milliseconds.

        Raises AdapterRejected, which names the field.
        """
        check_config(folder, self._model, self._limits, strict_base=self._strict_base)

    async def check(self, folder: Path, called: str) -> ValidatedAdapter:
        """Checks an adapter. ``called`` is its owner's name for it, for the log.

        Raises AdapterRejected, which names the field or tensor; TooLarge; StoreUnavailable if it takes too long.
        """
        return await self._threads.call(lambda: self._check(folder, called), timeout_s=self._timeout_s)

    def _check(self, folder: Path, called: str) -> ValidatedAdapter:
        for path in (folder / name for name in ADAPTER_FILES):
            if path.exists():
                check_file_size(path.name, path.stat().st_size, self._max_adapter_bytes)
        ref = read_adapter(folder, self._model, strict_base=self._strict_base, called=called)
        check_fits_pool(ref, self._num_lora_pages, self._limits)
        base_model = parse_peft_config((folder / CONFIG_NAME).read_bytes()).base_model_name_or_path
        return ValidatedAdapter(ref, base_model or None, read_chat_template(folder))


def read_chat_template(folder: Path) -> str | None:
    """An adapter's own chat template, if it has one. Raises AdapterRejected if that is not a valid template."""
    if (folder / TEMPLATE_NAME).exists():
        return _checked(_text(folder / TEMPLATE_NAME), TEMPLATE_NAME)
    if not (folder / TOKENIZER_NAME).exists():
        return None
    template = _template_of(_text(folder / TOKENIZER_NAME))
    return None if template is None else _checked(template, TOKENIZER_NAME)


def _template_of(tokenizer_config: str) -> str | None:
    """The template in tokenizer_config.json: the field's value, or its "default" entry if it holds several by name."""
    try:
        document = json.loads(tokenizer_config)
    except (ValueError, RecursionError) as error:
        raise AdapterRejected(f"{TOKENIZER_NAME} is not valid JSON: {error}", param=TOKENIZER_NAME) from error
    template: Any = document.get("chat_template") if isinstance(document, dict) else None
    if isinstance(template, list):
        named = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next((entry.get("template") for entry in named), None)
    if template is not None and not isinstance(template, str):
        raise AdapterRejected("`chat_template` is neither a template nor a list of named ones", param="chat_template")
    return template or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise AdapterRejected(f"{path.name} is not valid UTF-8", param=path.name) from error


def _checked(template: str, name: str) -> str:
    """Checks a template by parsing, not compiling: compiling evaluates constant expressions, and so already runs
    untrusted code.
    """
    if len(template) > _MAX_TEMPLATE_CHARACTERS:
        message = f"the chat template of {name} has more than {_MAX_TEMPLATE_CHARACTERS} characters, the limit"
        raise AdapterRejected(message, param="chat_template")
    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateSyntaxError as error:
        raise _wrong_template(name, f"line {error.lineno}: {error.message}") from error
    except (RecursionError, ValueError) as error:  # ValueError: a number with thousands of digits
        raise _wrong_template(name, "it is nested too deeply, or has too long a number") from error
    return template


def _wrong_template(name: str, reason: str) -> AdapterRejected:
    return AdapterRejected(f"the chat template of {name} is wrong: {reason}", param="chat_template")
