"""TGI's client: python ask_text_generation.py URL KEY. It knows no adapters, and no names of models."""

import asyncio
import importlib.metadata
import json
import sys

from text_generation import AsyncClient, Client
from text_generation.errors import UnknownError, ValidationError
from text_generation.types import FinishReason, Message

from raised import raised

URL, KEY = sys.argv[1:]
HEADERS = {"Authorization": f"Bearer {KEY}"}
CONTEXT = 2048


def texts(client: Client) -> None:
    answer = client.generate("42", max_new_tokens=32, decoder_input_details=True, top_n_tokens=2)
    assert answer.generated_text == "43 44 45 46 47 48"
    details = answer.details
    assert details.finish_reason == FinishReason.EndOfSequenceToken and len(details.prefill) == 3
    assert details.generated_tokens == len(details.tokens) == len(answer.generated_text) + 1
    assert details.top_tokens and all(len(tops) == 2 for tops in details.top_tokens)
    assert [tops[0].special for tops in details.top_tokens] == [token.special for token in details.tokens]
    best = client.generate("42", do_sample=True, best_of=2, max_new_tokens=4)
    assert best.details.best_of_sequences and len(best.details.best_of_sequences) == 1


def streams(client: Client) -> None:
    *pieces, last = list(client.generate_stream("42", max_new_tokens=32, top_n_tokens=1))
    assert "".join(piece.token.text for piece in pieces) == last.generated_text == "43 44 45 46 47 48"
    assert last.token.special and last.top_tokens and last.top_tokens[0].special and last.details
    assert last.details.generated_tokens == len(pieces) + 1


def chats(client: Client) -> None:
    """Whole ones: of its two ways to stream a chat, one fails in itself, and one wants a role in each piece."""
    answer = client.chat([Message(role="user", content="42")], max_tokens=32, logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content == "43 44 45 46 47 48" and answer.model == "numbers"
    assert answer.usage["completion_tokens"] == len("43 44 45 46 47 48") + 1 and answer.choices[0].logprobs


def errors(client: Client) -> None:
    assert "`inputs` has 2049 tokens" in str(raised(ValidationError, lambda: client.generate("4" * CONTEXT)))
    too_many = raised(ValidationError, lambda: client.generate("42", max_new_tokens=CONTEXT))
    assert "`parameters.max_new_tokens`" in str(too_many)
    wrong = Client(URL, headers={"Authorization": "Bearer sk-wrong"})
    assert "key" in str(raised(UnknownError, lambda: wrong.generate("42")))


async def asynchronously() -> None:
    client = AsyncClient(URL, headers=HEADERS)
    answers = await asyncio.gather(*(client.generate(text, max_new_tokens=1) for text in ("42", "7")))
    assert [answer.generated_text for answer in answers] == ["4", "8"]
    pieces = [piece.token.text async for piece in client.generate_stream("42", max_new_tokens=2)]
    assert pieces == ["4", "3"]


blocking = Client(URL, headers=HEADERS)
for check in (texts, streams, chats, errors):
    check(blocking)
asyncio.run(asynchronously())
print(json.dumps({"version": importlib.metadata.version("text-generation")}))
