import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from punica_frontend.generation.templates import TemplateRenderer
from punica_serve.errors import AdapterRejected, InvalidRequest
from punica_serve.text.prompt_limits import PromptLimits

CONTEXT = 100_000
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
async def renderer(tokenizer_folder: Path) -> AsyncIterator[TemplateRenderer]:
    renderer = TemplateRenderer({"bos": "<s>"}, tokenizer_folder, PromptLimits(CONTEXT), num_processes=1)
    yield renderer
    await renderer.aclose()


async def render(renderer: TemplateRenderer, source: str, messages: list[dict[str, Any]] = HELLO) -> str | list[int]:
    return await renderer.render(source, messages, "acme", add_generation_prompt=True)


async def test_prompts(renderer: TemplateRenderer) -> None:
    assert await render(renderer, PLAIN) == "<s>user: hi\na:"
    assert await render(renderer, PLAIN, [{"role": "user", "content": "é" * 60_000}]) == f"<s>user: {'é' * 60_000}\na:"
    long = await render(renderer, PLAIN, [{"role": "user", "content": "é" * 100_000}])
    assert isinstance(long, list) and len(long) == len(f"<s>user: {'é' * 100_000}\na:".encode())
    assert await asyncio.gather(*(render(renderer, f"{i}") for i in range(20))) == [str(i) for i in range(20)]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('no robots') }}", "no robots"),
        ("one\n{% endfor %}", "the chat template of the adapter is invalid in line 2"),
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
async def test_a_greedy_template_does_not_affect_others(renderer: TemplateRenderer, source: str) -> None:
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


async def test_the_process_leaves_the_cpu_to_those_that_serve(renderer: TemplateRenderer) -> None:
    await render(renderer, PLAIN)
    (process,) = renderer._idle
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(os.nice(0) + 10, 19)


async def test_one_who_leaves_takes_the_process_along(renderer: TemplateRenderer) -> None:
    await render(renderer, PLAIN)
    rendering = asyncio.create_task(render(renderer, GREEDY["loops"]))
    await asyncio.sleep(0)
    rendering.cancel()
    await asyncio.wait([rendering])
    assert await render(renderer, PLAIN) == "<s>user: hi\na:"


async def test_a_flood_of_one_tenants_slow_templates_does_not_hold_up_others(renderer: TemplateRenderer) -> None:
    order = []

    async def tell(tenant: str, source: str) -> None:
        await renderer.render(source, HELLO, tenant, add_generation_prompt=True)
        order.append(tenant)

    flood = [tell("hog", f"{{% for a in range(9999) %}}{{% endfor %}}{number}") for number in range(20)]
    await asyncio.gather(*flood, tell("acme", PLAIN))
    assert "acme" in order[:3], order


async def test_messages_that_take_too_long_are_no_fault_of_others_with_the_same_template(
    renderer: TemplateRenderer,
) -> None:
    quadratic = "{% for a in messages[0]['content'] %}{% for b in messages[0]['content'] %}{% endfor %}{% endfor %}4"
    with pytest.raises(InvalidRequest, match="too much time"):
        await renderer.render(quadratic, [{"content": "x" * 60_000}], "hog", add_generation_prompt=True)
    with pytest.raises(InvalidRequest, match="too much time"):
        await renderer.render(quadratic, [{"content": "x"}], "hog", add_generation_prompt=True)
    assert await renderer.render(quadratic, [{"content": "x"}], "acme", add_generation_prompt=True) == "4"
