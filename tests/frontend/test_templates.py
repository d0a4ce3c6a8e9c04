import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from punica_frontend.templates import TemplateRenderer
from punica_serve.errors import AdapterRejected, InvalidRequest

HELLO = [{"role": "user", "content": "hi"}]
PLAIN = "{{ bos }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ 'a:' if add_generation_prompt }}"

#: Each of them would hold up an event loop, or take all memory there is.
GREEDY = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "doubling": "{% set n = namespace(x='aaaaaaaa') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "constant": "{{ 'a' * 10 ** 11 }}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "long": "{{ 'a' * 9000000 }}",
}


@pytest.fixture
async def renderer() -> AsyncIterator[TemplateRenderer]:
    renderer = TemplateRenderer({"bos": "<s>"}, num_processes=1)
    yield renderer
    await renderer.aclose()


async def render(renderer: TemplateRenderer, source: str, messages: list[dict[str, Any]] = HELLO) -> str:
    return await renderer.render(source, messages, "acme", add_generation_prompt=True)


async def test_prompts(renderer: TemplateRenderer) -> None:
    assert await render(renderer, PLAIN) == "<s>user: hi\na:"
    assert await render(renderer, PLAIN, [{"role": "user", "content": "é" * 1_000_000}]) == (
        f"<s>user: {'é' * 1_000_000}\na:"
    )
    assert await asyncio.gather(*(render(renderer, f"{i}") for i in range(20))) == [str(i) for i in range(20)]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('no robots') }}", "no robots"),
        ("one\n{% endfor %}", "the chat template of the adapter is wrong in line 2"),
        ("{{ messages[7].content.strip() }}", "no element 7"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ '\\ud800' }}", "surrogates"),
    ],
)
async def test_templates_that_refuse_or_are_wrong(renderer: TemplateRenderer, source: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        await render(renderer, source)
    assert caught.value.param == "messages"
    assert await render(renderer, PLAIN)


@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
async def test_a_greedy_template_harms_nobody_else(renderer: TemplateRenderer, source: str) -> None:
    with pytest.raises(InvalidRequest):
        await render(renderer, source)
    assert await render(renderer, PLAIN) == "<s>user: hi\na:"


async def test_a_template_that_took_too_long_is_not_tried_again(renderer: TemplateRenderer) -> None:
    for _ in range(50):  # one of them takes a second
        with pytest.raises(InvalidRequest, match="too much time"):
            await render(renderer, GREEDY["loops"])


async def test_a_template_is_checked_without_messages(renderer: TemplateRenderer) -> None:
    await renderer.check("{{ raise_exception('only when it is rendered') }}", "acme")
    for source, says in (("{% if %}", "line 1"), ("{{ 9 ** (9 ** 9) }}", "too much time")):
        with pytest.raises(AdapterRejected, match=says) as caught:
            await renderer.check(source, "acme")
        assert caught.value.param == "chat_template"


async def test_secrets_stay_here(renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNICA_CLUSTER_TOKEN", "secret")
    await render(renderer, PLAIN)
    (process,) = renderer._idle
    assert b"secret" not in await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_bytes)


async def test_one_who_leaves_takes_the_process_along(renderer: TemplateRenderer) -> None:
    await render(renderer, PLAIN)
    rendering = asyncio.create_task(render(renderer, GREEDY["loops"]))
    await asyncio.sleep(0)
    rendering.cancel()
    await asyncio.wait([rendering])
    assert await render(renderer, PLAIN) == "<s>user: hi\na:"


async def test_a_flood_of_one_tenants_slow_templates_does_not_hold_up_others(renderer: TemplateRenderer) -> None:
    order = []

    async def tell(owner: str, source: str) -> None:
        await renderer.render(source, HELLO, owner, add_generation_prompt=True)
        order.append(owner)

    flood = [tell("hog", f"{{% for a in range(9999) %}}{{% endfor %}}{number}") for number in range(20)]
    await asyncio.gather(*flood, tell("acme", PLAIN))
    assert "acme" in order[:3], order
