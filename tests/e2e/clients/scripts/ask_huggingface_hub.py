"""Hugging Face's InferenceClient, in the versions of both environments: python ask_huggingface_hub.py URL KEY."""

import json
import sys
from typing import Any

import huggingface_hub
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError

from raised import raised

URL, KEY = sys.argv[1:]
CONTEXT = 2048
MESSAGES: Any = [{"role": "user", "content": "42"}]


def texts(client: InferenceClient) -> None:
    answer = client.text_generation("42", adapter_id="roman", details=True, decoder_input_details=True, top_n_tokens=2)
    assert answer.generated_text == "XLII" and answer.details and len(answer.details.prefill) == 3
    assert (answer.details.finish_reason, answer.details.generated_tokens) == ("eos_token", 5)
    assert answer.details.top_tokens
    assert [tops[0]["special"] for tops in answer.details.top_tokens] == [False] * 4 + [True]
    assert client.text_generation("42") == "43 44 45 46 47 48"
    pieces = list(client.text_generation("42", adapter_id="french", stream=True, details=True))
    assert "".join(piece.token.text for piece in pieces if not piece.token.special) == "quarante-deux"
    end = pieces[-1].details
    assert end and end.input_length == 3 and end.generated_tokens == len(pieces)


def chats(client: InferenceClient) -> None:
    # Without a model of its own it sends "dummy".
    answer = client.chat_completion(MESSAGES, max_tokens=32, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == "43 44 45 46 47 48" and answer.model == "numbers"
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.content[0].token == "4"
    based = InferenceClient(base_url=f"{URL}/v1", api_key=KEY)
    answer = based.chat.completions.create(MESSAGES, model="roman")
    assert answer.choices[0].message.content == "XLII" and answer.usage.completion_tokens == 5
    options: Any = {"include_usage": True}
    stream: Any = based.chat_completion(MESSAGES, model="english", stream=True, stream_options=options)
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "forty-two"
    assert last.usage.completion_tokens == len("forty-two") + 1


def errors(client: InferenceClient) -> None:
    refused = raised(TextGenerationError, lambda: client.text_generation("42", temperature=-1.0))
    assert "`parameters.temperature`" in str(refused)
    long = raised(TextGenerationError, lambda: client.text_generation("4" * CONTEXT))
    assert "`inputs` has 2049 tokens" in str(long)
    based = InferenceClient(base_url=f"{URL}/v1", api_key=KEY)
    unknown = raised(HfHubHTTPError, lambda: based.chat_completion(MESSAGES, model="unheard-of"))
    assert unknown.response.status_code == 404 and "'unheard-of' does not exist" in str(unknown)
    long_chat = raised(HfHubHTTPError, lambda: based.chat_completion(MESSAGES, model="hex", max_tokens=CONTEXT))
    assert "context_length_exceeded" in long_chat.response.text
    for wrong in (
        raised(HfHubHTTPError, lambda: InferenceClient(URL, token="sk-wrong").chat_completion(MESSAGES)),
        raised(HfHubHTTPError, lambda: InferenceClient(URL, token="sk-wrong").text_generation("42")),
    ):
        assert wrong.response.status_code == 401


inference = InferenceClient(URL, token=KEY)
for check in (texts, chats, errors):
    check(inference)
print(json.dumps({"version": huggingface_hub.__version__}))
