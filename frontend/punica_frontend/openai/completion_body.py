"""The body of POST /v1/completions."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, SkipValidation, ValidationError
from pydantic_core import PydanticCustomError

from punica_frontend.api.schemas import MAX_LOGPROBS, are_integers, whole_characters, wrong_item
from punica_frontend.fields.lists import NEUTRAL_WITH_SPECIAL_TOKENS, FieldLists
from punica_frontend.generation.choices import MAX_CHOICES
from punica_frontend.openai.sampling_body import SamplingBody


def _as_prompts(value: Any) -> Any:
    """Accepts one prompt or several. Checked by hand, because a union's errors would name internal types."""
    if isinstance(value, str):
        value = [value]
    elif _are_ids(value):
        return [value]
    if not isinstance(value, list):
        message = "Input should be a string, a list of strings, a list of token ids, or a list of such lists"
        raise PydanticCustomError("prompt_type", message)
    if value and are_integers(value[:1]):
        raise _wrong_id(value, ())
    for place, prompt in enumerate(value):
        if not isinstance(prompt, str) and not _are_ids(prompt):
            raise _wrong_prompt(prompt, place)
    return [whole_characters(prompt) if isinstance(prompt, str) else prompt for prompt in value]


def _wrong_prompt(prompt: Any, place: int) -> ValidationError:
    if isinstance(prompt, list) and prompt:
        return _wrong_id(prompt, (place,))
    return wrong_item(prompt, (place,), "prompt_type", "Input should be a string or a list of token ids")


def _wrong_id(ids: list[Any], place: tuple[int, ...]) -> ValidationError:
    """Returns the error about the first item that is no token id, as the others are."""
    index, item = next((index, item) for index, item in enumerate(ids) if not are_integers([item]))
    return wrong_item(item, (*place, index), "prompt_type", "Input should be a token id, an integer")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and are_integers(value)


class CompletionBody(SamplingBody):
    lists: ClassVar[FieldLists] = FieldLists(
        neutral=NEUTRAL_WITH_SPECIAL_TOKENS, instead={"max_completion_tokens": "give `max_tokens`"}
    )

    prompt: Annotated[
        list[SkipValidation[str | list[int]]],  # `_as_prompts` has looked at every id
        Field(min_length=1, max_length=MAX_CHOICES),
        BeforeValidator(_as_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ] = Field(description="One prompt or several, as text or as token ids.", examples=["42"])
    best_of: int | None = Field(
        None, ge=1, le=MAX_CHOICES, description="Generate this many answers of each prompt, and return the n likeliest."
    )
    echo: bool | None = Field(None, description="Put the prompt before the answer.")
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="Return logprobs, and this many of the most likely tokens."
    )

    @property
    def num_drawn(self) -> int:
        """The number of answers generated for each prompt."""
        return self.best_of or self.num_choices
