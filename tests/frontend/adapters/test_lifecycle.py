from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from punica_frontend.adapters.lifecycle import checking
from punica_frontend.templates import TemplateRenderer
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef
from punica_serve.store.intake import Intake


class Desk:
    """Has no objection."""

    def __init__(self, chat_template: str | None) -> None:
        self.intake = Intake(AdapterRef("d", "/d", 1, {}), base_model=None, chat_template=chat_template)

    async def check(self, _: Path, called: str) -> Intake:
        assert called == "acme/latin"
        return self.intake


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
async def test_an_adapter_is_taken_with_and_without_a_template(template: str | None, tmp_path: Path) -> None:
    desk: Any = Desk(template)
    async with aclosing(TemplateRenderer({})) as templates:
        assert await checking(desk, templates)(tmp_path, "acme", "latin") == desk.intake
        assert bool(templates._idle) == (template is not None)


async def test_a_template_that_can_be_read_but_not_compiled_is_refused(tmp_path: Path) -> None:
    desk: Any = Desk("{% set a = 1 %}{{ a | no_such_filter }}")
    async with aclosing(TemplateRenderer({})) as templates:
        with pytest.raises(AdapterRejected, match="no_such_filter") as caught:
            await checking(desk, templates)(tmp_path, "acme", "latin")
    assert caught.value.param == "chat_template"
