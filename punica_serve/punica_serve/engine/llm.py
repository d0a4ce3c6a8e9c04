"""``punica_serve.LLM``: many prompts on many LoRA models in one call, for scripts and notebooks. No servers.

llm = LLM("demo:model", adapters={"roman": "demo:adapters/roman"})
for answer in llm.generate(["42", "7"], lora_ids=["roman", None]):
    print(answer.text)
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from punica_serve.config import parse_config
from punica_serve.counted import counted
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import InvalidRequest
from punica_serve.protocol import FinishReason, Request, SamplingParams, TokenLogprobs
from punica_serve.registry.names import DEFAULT_TENANT
from punica_serve.registry.shared import shared_adapters
from punica_serve.registry.snapshot import RegistrySnapshot
from punica_serve.text.generated_text import GeneratedText
from punica_serve.text.tokenizer import Tokenizer

#: How long to wait for an adapter before looking again; its arrival ends the wait.
_WAIT_S = 1.0

Prompt = str | Sequence[int]


@dataclass(slots=True)
class Answer:
    """What one prompt got. ``error`` says why there is no more, when finish_reason is "error"."""

    prompt_ids: tuple[int, ...]
    #: None is the base model.
    lora_id: str | None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    #: As many as token_ids, where the parameters ask for them.
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None


class LLM:
    """One engine on one device, with its tokenizer and its adapters by name.

    Folders are as in a config file: paths, or ``demo:NAME``. Keywords beside those named are the settings of
    ``punica_serve.config.EngineConfig``. Raises ModelRejected, ConfigError or AdapterRejected when something can't be
    served.
    """

    def __init__(
        self,
        model: str | Path,
        adapters: Mapping[str, str | Path] | None = None,
        *,
        device: str = "cpu",
        strict_base: bool = False,
        **settings: Any,
    ) -> None:
        document = {
            "engine": {"model": str(model), **settings},
            "adapters": {name: str(folder) for name, folder in (adapters or {}).items()},
            "strict_base": strict_base,
        }
        cluster = parse_config(document, source="LLM", folder=Path.cwd())
        config = cluster.engine
        self.engine = Engine(config, device)
        self.tokenizer = Tokenizer.from_folder(config.tokenizer_folder)
        self._adapters = RegistrySnapshot(shared=shared_adapters(cluster, self.engine.model_config))
        for rejection in self._adapters.shared.rejected.values():
            raise rejection
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        lora_ids: str | Sequence[str | None] | None = None,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stop: str | Sequence[str] = (),
        progress: bool = True,
    ) -> list[Answer]:
        """Answers every prompt (a text, or token ids), in order.

        ``lora_ids`` and ``params`` are one for all prompts, or one each. Raises InvalidRequest or AdapterNotFound
        before anything runs; an adapter that fails while it loads fails its own prompts only.
        """
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in stops:
            raise InvalidRequest("`stop` holds an empty string, which would end every answer at once", param="stop")
        requests = list(self._requests(_as_list_of_prompts(prompts), lora_ids, params))
        answers = {request.request_id: Answer(request.prompt_ids, lora_id) for request, lora_id in requests}
        texts = {request.request_id: self._text_of(request, stops) for request, _ in requests}
        try:
            for request, _ in requests:
                self.engine.add(request)
            self._run(answers, texts, progress=progress)
        finally:
            for request_id in answers:
                self.engine.cancel(request_id)
        return list(answers.values())

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        lora_id: str | None = None,
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Answer:
        """Answers one conversation, rendered by the model's chat template."""
        text = self.tokenizer.render_chat(messages)
        prompt = self.tokenizer.encode(text, add_special_tokens=False)
        return self.generate([prompt], lora_id, params, **options)[0]

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _requests(
        self,
        prompts: Sequence[Prompt],
        lora_ids: str | Sequence[str | None] | None,
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> Iterator[tuple[Request, str | None]]:
        lora_per_prompt = _one_each("lora_ids", lora_ids, len(prompts), single=(str, type(None)))
        params = SamplingParams() if params is None else params
        params_per_prompt = _one_each("params", params, len(prompts), single=(SamplingParams,))
        for prompt, lora_id, sampling in zip(prompts, lora_per_prompt, params_per_prompt, strict=True):
            if not prompt:
                raise InvalidRequest("the prompt is empty; give at least one character or token", param="prompt")
            prompt_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            adapter = None if lora_id is None else self._adapters.adapter(DEFAULT_TENANT, lora_id).ref
            self._num_requests += 1
            request_id = f"{self._num_requests}"
            yield Request(request_id, time.time_ns(), tuple(prompt_ids), sampling, adapter), lora_id

    def _text_of(self, request: Request, stops: Sequence[str]) -> GeneratedText:
        end_ids = request.sampling.end_ids(self.engine.model_config.generation.eos_token_ids)
        return GeneratedText(self.tokenizer, request.prompt_ids, stops=stops, end_ids=end_ids)

    def _run(self, answers: Mapping[str, Answer], texts: Mapping[str, GeneratedText], *, progress: bool) -> None:
        with _progress(disable=not progress) as bar:
            task = bar.add_task("generate", total=len(answers), rate=0.0)
            started_s, num_tokens = time.perf_counter(), 0
            while self.engine.num_requests:
                output = self.engine.step()
                self._take(output, answers, texts)
                num_tokens += len(output.tokens)
                rate = num_tokens / (time.perf_counter() - started_s)
                bar.update(task, completed=len(answers) - self.engine.num_requests, rate=rate)
                if not output.has_run:
                    self.engine.wait(_WAIT_S)

    def _take(self, output: StepOutput, answers: Mapping[str, Answer], texts: Mapping[str, GeneratedText]) -> None:
        """Writes a step's results into the answers; a stop string ends its request here."""
        reasons = dict(output.finished)
        for token in output.tokens:
            answer = answers[token.request_id]
            piece = texts[token.request_id].feed([token.token_id], reasons.get(token.request_id))
            answer.text += piece.text
            answer.token_ids.append(token.token_id)
            answer.finish_reason = piece.finish_reason
            if token.logprobs is not None:
                answer.logprobs.append(token.logprobs)
            if piece.finish_reason:
                self.engine.cancel(token.request_id)
        for failure in output.failures:
            for request_id in failure.request_ids:
                answers[request_id].finish_reason, answers[request_id].error = "error", failure.error.message


def _as_list_of_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One text, or one list of token ids, is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _one_each(name: str, values: Any, count: int, *, single: tuple[type, ...]) -> list[Any]:
    """One value for all becomes one each. Raises InvalidRequest if there are more or fewer than prompts."""
    if isinstance(values, single):
        return [values] * count
    if len(values) != count:
        raise InvalidRequest(
            f"`{name}` has length {len(values)}, for {counted(count, 'prompt')}; give one, or one each", param=name
        )
    return list(values)


def _progress(*, disable: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.0f} tok/s"),
    )
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=disable)
