import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from processor_time import processor_s
from punica_serve.base_model.lora_layout import USUAL_LIMITS, LoraLimits
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected, StoreUnavailable, TooLarge
from punica_serve.protocol import AdapterRef
from punica_serve.store import validator
from punica_serve.store.validator import AdapterValidator

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def folder(ref: AdapterRef) -> Path:
    return Path(ref.uri)


def _desk(model: ModelConfig, **settings: Any) -> AdapterValidator:
    usual = {"strict_base": False, "num_lora_pages": 64, "limits": USUAL_LIMITS, "max_adapter_bytes": 1 << 20}
    return AdapterValidator(model, **{**usual, "num_threads": 4, "timeout_s": 60.0, **settings})


@pytest.fixture
def desk(model: ModelConfig) -> AdapterValidator:
    return _desk(model, strict_base=True)


@pytest.fixture
def refusal(desk: AdapterValidator, folder: Path) -> Callable[[], Any]:
    async def refused() -> AdapterRejected:
        with pytest.raises(AdapterRejected) as caught:
            await desk.check(folder, "acme/latin")
        assert str(folder) not in caught.value.message
        return caught.value

    return refused


async def test_a_good_adapter_is_taken(desk: AdapterValidator, folder: Path, ref: AdapterRef) -> None:
    taken = await desk.check(folder, "acme/latin")
    assert taken == validator.ValidatedAdapter(ref, base_model="tiny", chat_template=None)


async def test_the_log_calls_it_what_its_owner_does(
    model: ModelConfig, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = _desk(replace(model, name="other"))
    await desk.check(folder, "acme/latin")
    (message,) = caplog.messages
    assert message.startswith("adapter acme/latin: `base_model_name_or_path` is 'tiny', and the base model is 'other'")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", TEMPLATE),
        ("tokenizer_config.json", json.dumps({"chat_template": TEMPLATE})),
        (
            "tokenizer_config.json",
            json.dumps(
                {"chat_template": [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]}
            ),
        ),
    ],
)
async def test_its_own_chat_template_is_kept(desk: AdapterValidator, folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    assert (await desk.check(folder, "acme/latin")).chat_template == TEMPLATE


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("chat_template.jinja", "{% for %}", "line 1"),
        ("chat_template.jinja", "x" * 70_000, "65536 characters"),
        ("chat_template.jinja", "{{" + "(" * 30_000, "wrong"),
        ("chat_template.jinja", "{{ " + "9" * 5_000 + " }}", "too long a number"),
        ("tokenizer_config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", "[" * 100_000, "not valid JSON"),
        ("tokenizer_config.json", '{"chat_template": 3}', "neither a template"),
        ("tokenizer_config.json", '{"chat_template": [{"name": []}, {"name": "default", "template": 3}]}', "neither"),
    ],
)
async def test_a_wrong_chat_template_is_refused(
    refusal: Callable[[], Any], folder: Path, name: str, content: str, message: str
) -> None:
    (folder / name).write_text(content)
    assert message in (await refusal()).message


async def test_a_template_is_not_run(desk: AdapterValidator, folder: Path) -> None:
    """Jinja evaluates constants when it compiles; this one would take for ever."""
    (folder / "chat_template.jinja").write_text("{{ 9 ** 9 ** 9 ** 9 }}")
    assert (await desk.check(folder, "acme/latin")).chat_template


async def test_what_the_reader_refuses_is_refused_without_the_frontends_folder(
    refusal: Callable[[], Any], folder: Path
) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    refused = await refusal()
    assert refused.param == "use_dora"
    assert refused.message.startswith("adapter_config.json: `use_dora`")


async def test_an_expression_that_would_never_end_is_refused(refusal: Callable[[], Any], folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "target_modules": "(.|..)*!"}))
    refused = await refusal()
    assert (refused.param, "takes too long to match" in refused.message) == ("target_modules", True)


NAMES = [f"module.{number:05d}" for number in range(20_000)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"target_modules": "|".join(NAMES[:6000])}, "target_modules"),
        ({"target_modules": "|".join(NAMES)}, "target_modules"),
        ({"target_modules": NAMES}, "target_modules"),
        ({"rank_pattern": dict.fromkeys(NAMES, 4)}, "rank_pattern"),
        ({"alpha_pattern": dict.fromkeys(NAMES, 4.0)}, "alpha_pattern"),
    ],
)
async def test_thousands_of_names_are_refused_at_once(
    refusal: Callable[[], Any], folder: Path, fields: dict[str, Any], param: str
) -> None:
    """Four of these used to keep all other registrations waiting for 39 s, and answers for 0.8 s."""
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **fields}))
    before_s = processor_s()
    refused = await refusal()
    assert (refused.param, " limit " in refused.message) == (param, True)
    assert processor_s() - before_s < 0.5


async def test_a_file_beyond_the_limit_is_not_read(model: ModelConfig, folder: Path) -> None:
    desk = _desk(model, max_adapter_bytes=1000)
    with pytest.raises(TooLarge, match=r"adapter_model\.safetensors"):
        await desk.check(folder, "acme/latin")


async def test_gives_up_at_its_deadline(model: ModelConfig, folder: Path) -> None:
    desk = _desk(model, timeout_s=0.0)
    with pytest.raises(StoreUnavailable, match="checking the adapter took longer"):
        await desk.check(folder, "acme/latin")


async def test_one_that_no_gpu_could_hold_is_refused(model: ModelConfig, folder: Path) -> None:
    desk = _desk(model, num_lora_pages=0)
    with pytest.raises(AdapterRejected, match=r"`engine\.num_lora_pages`"):
        await desk.check(folder, "acme/latin")


async def test_one_beyond_the_engines_limits_is_refused_with_the_setting(model: ModelConfig, folder: Path) -> None:
    desk = _desk(
        model,
        limits=LoraLimits(1),
        max_adapter_bytes=1 << 20,
        num_threads=4,
        timeout_s=60.0,
    )
    with pytest.raises(AdapterRejected, match=r"`engine\.max_lora_rank` is 1; raise") as caught:
        await desk.check(folder, "acme/latin")
    assert caught.value.param == "r"
