"""Resolves the ``model`` of a body to an adapter or the base model, and names it in the answer."""

from punica_frontend.api.caller import Caller
from punica_frontend.generation.choices import Choices
from punica_frontend.generation.generator import Generator
from punica_frontend.openai.error_terms import lora_id_of
from punica_serve.errors import AdapterNotFound
from punica_serve.registry.records import AdapterVersion

#: Names that TGI's clients send to a server with one model: "tgi" by text-generation and TGI's docs, "dummy" by Hugging
#: Face's InferenceClient. They mean the base model, unless the caller has an adapter of that name.
PLACEHOLDERS = frozenset({"tgi", "dummy"})


async def model_named(
    model: str | None, caller: Caller, generator: Generator, *, base_name: str
) -> AdapterVersion | None:
    """Returns the adapter that the caller names by ``model``; None for the base model.

    Raises AdapterNotFound, AdapterRejected for one that can't be served, and InvalidRequest for an ambiguous name.
    """
    try:
        return await generator.adapter(lora_id_of(model, base_name), caller)
    except AdapterNotFound:
        if model in PLACEHOLDERS:
            return None
        raise


def name_in_answer(model: str | None, choices: Choices, *, base_name: str) -> str:
    """Returns the client's name for an adapter, or the base model's own name."""
    return model if model and choices.plans[0].adapter else base_name
