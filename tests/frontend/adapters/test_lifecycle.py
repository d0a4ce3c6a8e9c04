import asyncio
import json
import shutil
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import punica_serve
from echo_cluster import EchoCluster
from punica_frontend.adapters.addresses import Address
from punica_frontend.adapters.lifecycle import Lifecycle, validation
from punica_frontend.adapters.registration import CHECKS, Fetch, RegistrationRequest
from punica_frontend.api.caller import Caller
from punica_frontend.generation.templates import TemplateRenderer
from punica_serve.base_model.config_json import read_model_config
from punica_serve.config.cluster import parse_config
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.registry import Registry
from punica_serve.store.validator import ValidatedAdapter
from punica_serve.text.prompt_limits import PromptLimits

DEMO = Path(punica_serve.__file__).parent / "demo" / "adapters" / "roman"


class Desk:
    """Has no objection."""

    def __init__(self, chat_template: str | None) -> None:
        self.validated = ValidatedAdapter(AdapterRef("d", "/d", 1, {}), base_model=None, chat_template=chat_template)

    async def check(self, _: Path, called: str) -> ValidatedAdapter:
        assert called == "acme/latin"
        return self.validated


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
async def test_an_adapter_is_taken_with_and_without_a_template(template: str | None, tmp_path: Path) -> None:
    validator: Any = Desk(template)
    async with aclosing(TemplateRenderer({}, tmp_path, PromptLimits(64))) as templates:
        assert (
            await validation(validator, templates)(tmp_path, Address("acme-1", "acme", "latin")) == validator.validated
        )
        assert bool(templates._idle) == (template is not None)


async def test_a_template_that_can_be_read_but_not_compiled_is_refused(tmp_path: Path) -> None:
    validator: Any = Desk("{% set a = 1 %}{{ a | no_such_filter }}")
    async with aclosing(TemplateRenderer({}, tmp_path, PromptLimits(64))) as templates:
        with pytest.raises(AdapterRejected, match="no_such_filter") as caught:
            await validation(validator, templates)(tmp_path, Address("acme-1", "acme", "latin"))
    assert caught.value.param == "chat_template"


def bringing(changes: dict[str, str]) -> Fetch:
    """The demo's adapter with these fields in its configuration."""

    async def bring(folder: Path) -> None:
        shutil.copy(DEMO / "adapter_model.safetensors", folder)
        config = json.loads((DEMO / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | changes))

    return bring


async def test_slow_expressions_of_one_tenant_keep_no_other_waiting(
    registry: Registry, cluster: EchoCluster, tmp_path: Path
) -> None:
    model = "demo:model"
    config = parse_config({"engine": {"model": model}, "data_folder": str(tmp_path)}, source="a test", folder=tmp_path)
    slow = {"target_modules": r"(.*a|.*b|.*)*(q|v)_proj$x"}
    acme, globex = [
        Caller((await registry.put_tenant(name, TenantQuota(), by="test")).tenant_id, name, "user")
        for name in ("acme", "globex")
    ]
    client: Any = cluster
    async with aclosing(TemplateRenderer({}, tmp_path, PromptLimits(64))) as templates:
        lifecycle = Lifecycle.of(config, read_model_config(config.engine.model), registry, client, templates)
        register = lifecycle.registrar.register
        under_way = [
            asyncio.create_task(register(acme, RegistrationRequest(f"slow-{index}"), bringing(slow)))
            for index in range(CHECKS.num_tenant_slots)
        ]
        await asyncio.sleep(0.2)
        await register(globex, RegistrationRequest("quick"), bringing({}))
        assert not any(task.done() for task in under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
