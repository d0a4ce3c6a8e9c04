"""What clients of OpenAI and vLLM may ask for and this cluster can't do: refused by name, not ignored in silence."""

from collections.abc import Mapping, Sequence
from typing import Any

from punica_frontend.openai.chat_body import ChatBody, Message
from punica_frontend.openai.sampling_body import LenientBody, SamplingBody
from punica_serve.errors import InvalidRequest

_NOTHING: tuple[Any, ...] = (None, False, "", [], {})

#: A field -> values of it that ask for nothing. A field that one of the bodies knows is refused in the other alone.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "lora_id",
            "adapter_id",
            "max_completion_tokens",
            "tools",
            "functions",
            "logit_bias",
            "echo",
            "suffix",
            "audio",
            "web_search_options",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "structured_outputs",
            "use_beam_search",
            "bad_words",
            "allowed_token_ids",
            "prompt_logprobs",
            "prompt_embeds",
            "truncate_prompt_tokens",
            "include_stop_str_in_output",
            "return_token_ids",
            "return_tokens_as_token_ids",
            "logits_processors",
            "documents",
            "chat_template",
            "chat_template_kwargs",
            "continue_final_message",
            "mirostat",
            "xtc_probability",
            "no_repeat_ngram_size",
        ),
        _NOTHING,
    ),
    "tool_choice": (*_NOTHING, "none", "auto"),
    "function_call": (*_NOTHING, "none", "auto"),
    "response_format": (*_NOTHING, {"type": "text"}),
    "modalities": (*_NOTHING, ["text"]),
    "skip_special_tokens": (None, True),
    "length_penalty": (None, 1),
    "typical_p": (None, 1),
    "best_of": (None, 1),
}

#: Special tokens are added to prompts, and are the template's to write in chats.
_UNSUPPORTED_IN_CHATS = {**_UNSUPPORTED, "add_special_tokens": (None, False)}
_UNSUPPORTED_IN_COMPLETIONS = {**_UNSUPPORTED, "add_special_tokens": (None, True)}

#: What would change which tokens a text or a conversation becomes.
_UNSUPPORTED_OF_TOKENS = dict.fromkeys(
    (
        "lora_id",
        "adapter_id",
        "tools",
        "documents",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "truncate_prompt_tokens",
    ),
    _NOTHING,
)

_ADAPTER_AS_MODEL = "give the adapter's name as `model`"

#: What to do in place of leaving a field out.
_INSTEAD = {
    "lora_id": _ADAPTER_AS_MODEL,
    "adapter_id": _ADAPTER_AS_MODEL,
    "max_completion_tokens": "give `max_tokens`",
}

_UNSUPPORTED_IN_MESSAGES = ("tool_calls", "function_call", "tool_call_id")


def refuse_unsupported(body: SamplingBody, *, messages: Sequence[Message] = ()) -> None:
    """Raises InvalidRequest for the first field that asks for what there is not."""
    _refuse_fields(body, _UNSUPPORTED_IN_CHATS if isinstance(body, ChatBody) else _UNSUPPORTED_IN_COMPLETIONS)
    _refuse_in_messages(messages)
    if body.stream_options and not body.stream:
        raise InvalidRequest("`stream_options` is for streams: set `stream`, or leave it out", param="stream_options")


def refuse_unsupported_of_tokens(body: LenientBody, *, messages: Sequence[Message] = ()) -> None:
    """The same for requests that turn text into tokens, or back. Ignores what would only change an answer."""
    _refuse_fields(body, _UNSUPPORTED_OF_TOKENS)
    _refuse_in_messages(messages)


def _refuse_fields(body: LenientBody, unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    for name, value in _extra(body).items():
        if name in unsupported and value not in unsupported[name]:
            raise _unsupported(name)


def _refuse_in_messages(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        for name in _UNSUPPORTED_IN_MESSAGES:
            if _extra(message).get(name) not in _NOTHING:
                raise _unsupported(f"messages.{index}.{name}")


def _extra(body: LenientBody | Message) -> Mapping[str, Any]:
    return body.model_extra or {}


def _unsupported(param: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` is not supported here; {_INSTEAD.get(param, 'leave it out')}", param=param)
