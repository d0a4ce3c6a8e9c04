from datetime import datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from punica_serve.errors import InvalidRequest, ModelRejected
from punica_serve.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "1 < 2 & é"}, {"role": "assistant", "content": "so it is"}]


def render(source: str, messages: list[dict[str, str]] = MESSAGES) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}, of="m").render(messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}\n{% endfor %}",
        "  {% if messages %}\n  {{ messages | tojson }}\n  {% endif %}\nend",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m | tojson(indent=2) }}{% endfor %}",
    ],
)
def test_renders_what_transformers_renders(source: str) -> None:
    expected, _ = render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>")
    assert render(source) == expected[0]


def test_knows_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content.strip() }}", "no element 7"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception('') }}", "these messages: TemplateError"),
    ],
)
def test_a_template_that_refuses_is_an_invalid_request(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        render(source)
    assert caught.value.param == "messages"


def test_a_template_that_is_none_is_rejected_with_its_line() -> None:
    with pytest.raises(ModelRejected, match="line 2"):
        render("fine\n{% endfor %}")
