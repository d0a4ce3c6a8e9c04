"""Bodies are read as Python's own parser reads them, whichever parser does it."""

import json
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from punica_frontend.api.json_request import MAX_STRINGS, JsonRequest, TooManyStrings

#: JSON by value, with whatever Python writes: lone surrogates, large numbers, NaN.
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.just("\ud800"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def request_with(body: bytes) -> Request:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return JsonRequest({"type": "http", "method": "POST", "headers": []}, receive)


def in_words(document: Any) -> str:
    """Tells 1 from 1.0 and true, and finds NaN equal to itself."""
    return repr(document)


@given(DOCUMENTS, st.booleans())
async def test_any_document(document: Any, ensure_ascii: bool) -> None:
    body = json.dumps(document, ensure_ascii=ensure_ascii).encode(errors="surrogatepass")
    assert in_words(await request_with(body).json()) == in_words(json.loads(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b"-0",
        b"1E400",
        b"123456789012345678901234567890",
        '"é"'.encode("utf-16"),
        b"\xef\xbb\xbf[1]",
        b'"\xed\xa0\x80"',
        b' \r\n\t"\\u0000\\/" ',
    ],
)
async def test_corners(body: bytes) -> None:
    assert in_words(await request_with(body).json()) == in_words(json.loads(body))


@pytest.mark.parametrize("body", [b"", b"[1,]", b"01", b'"\x01"', b'"\xff"', b"[" * 100_000, b"1" * 5_000])
async def test_unreadable_bodies_raise_the_errors_of_pythons_parser(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)) as own:
        json.loads(body)
    with pytest.raises(own.type) as raised:
        await request_with(body).json()
    assert str(raised.value) == str(own.value)


@pytest.mark.parametrize("text", ["5", "\\", '"'])
async def test_too_many_strings(text: str) -> None:
    with pytest.raises(TooManyStrings, match="65536 strings"):
        await request_with(json.dumps([text] * (2 * MAX_STRINGS + 1)).encode()).json()


async def test_as_many_strings_as_may_be_and_a_text_of_quotes() -> None:
    document = ["5"] * (MAX_STRINGS - 1) + ['"' * 3 * MAX_STRINGS]
    assert await request_with(json.dumps(document).encode()).json() == document
