"""Chat templates: Jinja programs that come with a model and turn a conversation into its prompt.

They follow transformers' conventions (blocks trimmed, ``raise_exception``, ``tojson``, ``strftime_now``, loop controls,
the special tokens as variables) and run in Jinja's immutable sandbox, since a model folder is not trusted code. The
sandbox limits what they can access, not their time and memory: templates of tenants' adapters are compiled and rendered
by ``template_worker``, a separate process.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from punica_serve.errors import InvalidRequest, ModelRejected


class ChatTemplate:
    """A compiled chat template. Immutable; safe to share between tasks and threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, of: str) -> None:
        """Raises ModelRejected if ``source`` is not a valid Jinja template; its message names ``of`` as the owner."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            message = f"the chat template of {of} is invalid in line {error.lineno}: {error.message}"
            raise ModelRejected(message, param="chat_template") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The prompt for ``messages``. Raises InvalidRequest if the template refuses them."""
        try:
            prompt = self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._special_tokens
            )
            prompt.encode()  # a template may output half of a surrogate pair, which no tokenizer accepts
            return prompt
        # A template may fail in any way, for example on a message that lacks a field.
        except Exception as error:
            message = f"the chat template refuses these messages: {str(error) or type(error).__name__}"
            raise InvalidRequest(message, param="messages") from error


def _to_json(value: object, indent: int | None = None) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(date_format: str) -> str:
    return datetime.now().strftime(date_format)
