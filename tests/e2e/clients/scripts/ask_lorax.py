"""LoRAX's client: python ask_lorax.py URL KEY."""

import asyncio
import importlib.metadata
import json
import sys

from lorax import AsyncClient, Client
from lorax.errors import GenerationError, NotFoundError, UnknownError, ValidationError
from lorax.types import FinishReason

from raised import raised

URL, KEY = sys.argv[1:]
HEADERS = {"Authorization": f"Bearer {KEY}"}
CONTEXT = 2048


def texts(client: Client) -> None:
    answers = {"roman": "XLII", "french": "quarante-deux", "hex": "2a", None: "43 44 45 46 47 48"}
    for adapter_id, text in answers.items():
        answer = client.generate("42", adapter_id=adapter_id, max_new_tokens=32)
        assert answer.generated_text == text and answer.details
        assert answer.details.finish_reason == FinishReason.EndOfSequenceToken
        assert (answer.details.prompt_tokens, answer.details.generated_tokens) == (3, len(text) + 1)
    answer = client.generate("42", adapter_id="roman", return_k_alternatives=2, decoder_input_details=True)
    assert answer.details and len(answer.details.prefill) == 3
    alternatives = answer.details.tokens[0].alternative_tokens
    assert alternatives and [alternatives[0].text, len(alternatives)] == ["X", 2]
    assert alternatives[0].logprob == answer.details.tokens[0].logprob


def streams(client: Client) -> None:
    *pieces, last = list(client.generate_stream("42", adapter_id="english", max_new_tokens=32))
    assert "".join(piece.token.text for piece in pieces) == last.generated_text == "forty-two"
    assert last.details and last.details.generated_tokens == len(pieces) + 1


def errors(client: Client) -> None:
    unknown = raised(NotFoundError, lambda: client.generate("42", adapter_id="unheard-of"))
    assert "'unheard-of'" in str(unknown)
    raised(GenerationError, lambda: client.generate("42", adapter_id="broken"))
    long = raised(ValidationError, lambda: client.generate("4" * CONTEXT, adapter_id="hex"))
    assert "`inputs` has 2049 tokens" in str(long)
    wrong = Client(URL, headers={"Authorization": "Bearer sk-wrong"})
    assert "key" in str(raised(UnknownError, lambda: wrong.generate("42", adapter_id="hex")))


async def many_at_once() -> None:
    client = AsyncClient(URL, headers=HEADERS)
    names = ["roman", "hex", "english", "binary"] * 4
    answers = await asyncio.gather(*(client.generate("42", adapter_id=name, max_new_tokens=32) for name in names))
    assert [answer.generated_text for answer in answers] == ["XLII", "2a", "forty-two", "101010"] * 4


blocking = Client(URL, headers=HEADERS)
for check in (texts, streams, errors):
    check(blocking)
asyncio.run(many_at_once())
print(json.dumps({"version": importlib.metadata.version("lorax-client")}))
