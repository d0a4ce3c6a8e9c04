"""Instructor, which asks for JSON in the prompt and checks it: python ask_instructor.py URL KEY."""

import importlib.metadata
import json
import sys
from typing import Any

import instructor
import openai
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel, ValidationError

from raised import raised

URL, KEY = sys.argv[1:]
MESSAGES: Any = [{"role": "user", "content": "42"}]


class Number(BaseModel):
    value: int


def client(key: str) -> Any:
    official = openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)
    return instructor.from_openai(official, mode=instructor.Mode.MD_JSON)


def ask(key: str, model: str) -> Any:
    return client(key).create(model=model, messages=MESSAGES, response_model=Number, max_retries=1, max_tokens=32)


failed = raised(InstructorRetryException, lambda: ask(KEY, "roman"))
assert all(isinstance(attempt.exception, ValidationError) for attempt in failed.failed_attempts), failed
assert all(attempt.completion.choices[0].finish_reason for attempt in failed.failed_attempts), failed
unknown = raised(Exception, lambda: ask(KEY, "unheard-of"))
assert "does not exist" in str(unknown), unknown
print(json.dumps({"version": importlib.metadata.version("instructor"), "num_tries": failed.n_attempts}))
