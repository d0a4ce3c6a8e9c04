"""The Python API, as a script or a notebook uses it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from punica_serve import LLM, SamplingParams
from punica_serve.errors import AdapterNotFound, AdapterRejected, ConfigError, InvalidRequest, ModelRejected
from punica_serve.protocol import AdapterRef

PARAMS = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture
def adapters(make_adapter: Callable[..., AdapterRef]) -> dict[str, str]:
    return {name: make_adapter(rank=4 * number, seed=number).uri for number, name in enumerate("xyz", start=1)}


@pytest.fixture
def llm(tiny_llama: Path, adapters: dict[str, str]) -> Iterator[LLM]:
    with LLM(tiny_llama, adapters, num_kv_pages=128, num_lora_pages=16) as llm:
        yield llm
        assert llm.engine.num_requests == 0
        assert llm.engine.num_free_kv_pages == llm.engine.num_kv_pages


def test_answers_come_in_order_and_each_from_its_own_adapter(llm: LLM) -> None:
    prompts, lora_ids = ["ab", "ab", "ab", "cde"], ["x", None, "y", "x"]
    answers = llm.generate(prompts, lora_ids, PARAMS, progress=False)
    assert [answer.lora_id for answer in answers] == lora_ids
    assert len({answer.text for answer in answers[:3]}) == 3
    for prompt, lora_id, answer in zip(prompts, lora_ids, answers, strict=True):
        assert answer.finish_reason == "length" and len(answer.token_ids) == 10
        assert answer.text == llm.tokenizer.decode(answer.token_ids)
        assert llm.generate(prompt, lora_id, PARAMS, progress=False) == [answer]


def test_one_prompt_may_be_text_or_token_ids(llm: LLM) -> None:
    (text,) = llm.generate("ab", params=PARAMS, progress=False)
    (ids,) = llm.generate([llm.tokenizer.encode("ab")], params=PARAMS, progress=False)
    (bare,) = llm.generate(llm.tokenizer.encode("ab"), params=PARAMS, progress=False)
    assert text == ids == bare


def test_a_prompt_that_begins_as_an_earlier_one_is_told_how_much_it_found(llm: LLM) -> None:
    system = "a prompt that many others begin with too"
    first, second = llm.generate([f"{system} one", f"{system} two"], "x", PARAMS, progress=False)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    (other,) = llm.generate(f"{system} two", "y", PARAMS, progress=False)
    assert other.num_cached_tokens == 0, "an adapter's pages are its own"


def test_more_prompts_than_a_batch_holds(llm: LLM) -> None:
    answers = llm.generate([f"{n}" for n in range(80)], ["x", "y", "z", None] * 20, PARAMS, progress=False)
    assert all(answer.finish_reason == "length" for answer in answers)


def test_parameters_may_differ_by_prompt(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=3, ignore_eos=True), SamplingParams(max_tokens=5, ignore_eos=True, logprobs=2)]
    short, long = llm.generate(["ab", "ab"], None, params, progress=False)
    assert (len(short.token_ids), len(long.token_ids)) == (3, 5)
    assert short.logprobs == [] and [len(entry.top_ids) for entry in long.logprobs] == [2] * 5
    assert long.token_ids[:3] == short.token_ids


def test_a_stop_string_ends_the_answer_before_it(llm: LLM) -> None:
    (free,) = llm.generate("ab", params=PARAMS, progress=False)
    stop = free.text[4:6]
    (stopped,) = llm.generate("ab", params=PARAMS, stop=[stop], progress=False)
    assert llm.generate("ab", params=PARAMS, stop=stop, progress=False) == [stopped], "one string is one stop"
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.finish_reason == "stop" and len(stopped.token_ids) < 10


def test_end_of_sequence_has_no_text(llm: LLM) -> None:
    answers = llm.generate([f"{n}" for n in range(20)], None, SamplingParams(max_tokens=200), progress=False)
    stopped = [answer for answer in answers if answer.finish_reason == "stop"]
    assert stopped and all(answer.token_ids[-1] == 0 and "<eos>" not in answer.text for answer in stopped)


def test_chat_renders_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "ab"}, {"role": "user", "content": "c"}]
    (plain,) = llm.generate("abc", "x", PARAMS, progress=False)
    assert llm.chat(messages, "x", PARAMS, progress=False) == plain


def test_progress_is_shown_unless_it_is_turned_off(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate("ab", params=PARAMS)
    assert "1/1" in capsys.readouterr().err
    llm.generate("ab", params=PARAMS, progress=False)
    assert capsys.readouterr() == ("", "")


def test_mistakes_are_named_and_leave_nothing_behind(llm: LLM) -> None:
    with pytest.raises(AdapterNotFound, match=r"'nobody'; LLM\(adapters=...\) was given 'x', 'y', 'z'"):
        llm.generate(["ab", "cd"], ["x", "nobody"], progress=False)
    with pytest.raises(InvalidRequest, match="`lora_ids` has length 3, for 2 prompts"):
        llm.generate(["ab", "cd"], ["x", "y", "z"], progress=False)
    with pytest.raises(InvalidRequest, match="`params` has length 0, for 1 prompt;"):
        llm.generate(["ab"], params=[], progress=False)
    with pytest.raises(InvalidRequest, match="`stop` holds an empty string"):
        llm.generate(["ab"], stop=["x", ""], progress=False)
    with pytest.raises(InvalidRequest, match=r"`prompts\.1`: the prompt is empty"):
        llm.generate(["ab", ""], progress=False)
    with pytest.raises(InvalidRequest, match="`prompt` holds token id -1"):
        llm.generate([-1], progress=False)
    with pytest.raises(InvalidRequest, match="`messages` must be a list"):
        llm.chat("ab")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="`temperature`"):
        llm.generate(["ab"], params=SamplingParams(temperature=-1.0), progress=False)


def test_of_several_prompts_the_wrong_one_is_told(llm: LLM) -> None:
    short, long = SamplingParams(max_tokens=4), SamplingParams(max_tokens=9000)
    with pytest.raises(InvalidRequest, match=r"^`prompts\.1`: `prompt` holds token id -1") as caught:
        llm.generate([[1], [-1]], progress=False)
    assert caught.value.param == "prompts.1"
    with pytest.raises(InvalidRequest, match=r"^`prompts\.2`: `max_tokens` is 9000, but beside a prompt of 2 tokens"):
        llm.generate(["ab"] * 3, None, [short, short, long], progress=False)
    with pytest.raises(InvalidRequest, match=r"^`params\.1`: `temperature` is -1\.0; it must be finite, at least 0$"):
        llm.generate(["ab"] * 2, None, [short, SamplingParams(temperature=-1.0)], progress=False)
    with pytest.raises(InvalidRequest, match=r"^`params\.1`: `max_tokens` of SamplingParams is 'few'"):
        llm.generate(["ab"] * 2, None, [short, SamplingParams(max_tokens="few")], progress=False)  # type: ignore[arg-type]


def test_what_is_one_for_all_prompts_is_told_as_one(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match=r"^`temperature` is -1"):
        llm.generate(["ab"] * 2, None, SamplingParams(temperature=-1.0), progress=False)


def test_a_broken_adapter_is_named_at_the_start(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterRejected, match=f"adapter 'broken': {tmp_path}"):
        LLM(tiny_llama, {"broken": tmp_path})


def test_a_missing_model_is_told_by_the_argument(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=rf"^model folder {tmp_path}/none does not exist; .* LLM's `model`, "):
        LLM(tmp_path / "none")


def test_adapters_of_high_rank_are_let_in_but_not_against_a_setting(
    tiny_llama: Path, make_adapter: Callable[..., AdapterRef]
) -> None:
    adapters = {"high": make_adapter(rank=136, seed=9).uri}
    with LLM(tiny_llama, adapters, num_kv_pages=128, num_lora_pages=32) as llm:
        assert llm.generate("2", "high")[0].finish_reason is not None
    with pytest.raises(AdapterRejected, match=r"'high': .* rank 136 .* `engine\.max_lora_rank` is 128; raise"):
        LLM(tiny_llama, adapters, num_kv_pages=128, num_lora_pages=32, max_lora_rank=128)


def test_a_closed_one_says_so(tiny_llama: Path, adapters: dict[str, str]) -> None:
    llm = LLM(tiny_llama, adapters, num_kv_pages=128, num_lora_pages=16)
    for _ in range(2):
        llm.close()
    with pytest.raises(InvalidRequest, match="this LLM is closed"):
        llm.generate("ab", "x", progress=False)


def test_a_refusal_names_another_one_that_is_open_on_the_device(tiny_llama: Path) -> None:
    """As in a notebook whose cell runs again: the name still refers to the first one."""
    settings: dict[str, Any] = {"num_kv_pages": 1 << 30, "num_lora_pages": 16}
    named = r"num_kv_pages` of .*; another LLM of this process is open on cpu: call its close\(\) first"
    with LLM(tiny_llama, num_kv_pages=32, num_lora_pages=16), pytest.raises(ConfigError, match=named):
        LLM(tiny_llama, **settings)
    with pytest.raises(ConfigError) as refused:
        LLM(tiny_llama, **settings)
    assert "another LLM" not in str(refused.value)


def test_unknown_settings_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"LLM: `engine\.page_sise`"):
        LLM(tiny_llama, page_sise=4)


def test_an_adapter_that_fails_while_it_loads_fails_its_own_prompts(llm: LLM, adapters: dict[str, str]) -> None:
    weights = Path(adapters["y"]) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    good, bad = llm.generate(["ab", "ab"], ["x", "y"], PARAMS, progress=False)
    assert good.finish_reason == "length" and good.error is None
    assert bad.finish_reason == "error" and bad.error and bad.text == ""
