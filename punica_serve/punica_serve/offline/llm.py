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

from punica_serve.base_model.config_json import read_model_config
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import AdapterNotFound, AdapterRejected, InvalidRequest
from punica_serve.offline import open_llms
from punica_serve.offline.dropped_llm import close_when_dropped
from punica_serve.offline.engine_start import start_engine
from punica_serve.offline.llm_arguments import (
    Prompt,
    check_messages,
    cluster_of,
    device_of,
    list_of_lora_ids,
    list_of_params,
    list_of_prompts,
    list_of_stops,
    naming,
)
from punica_serve.protocol import AdapterRef, FinishReason, Request, SamplingParams, TokenLogprobs
from punica_serve.registry.config_adapters import shared_adapters
from punica_serve.registry.names import DEFAULT_TENANT, MAX_SHOWN_CHARS
from punica_serve.registry.snapshot import RegistrySnapshot
from punica_serve.text.generated_text import GeneratedText
from punica_serve.text.tokenizer import Tokenizer

#: How long to wait for an adapter before looking again; its arrival ends the wait.
_WAIT_S = 1.0


@dataclass(slots=True)
class Answer:
    """The output for one prompt. ``error`` says why it ended, when finish_reason is "error"."""

    prompt_ids: tuple[int, ...]
    #: None is the base model.
    lora_id: str | None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    #: As many as token_ids, where the parameters ask for them.
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    #: Of the prompt's, those that were found in the KvCache; with `prefix_caching=False` none are. Equal answers differ
    #: in it.
    num_cached_tokens: int = field(default=0, compare=False)
    finish_reason: FinishReason | None = None
    error: str | None = None


class LLM:
    """One engine on one device, or on ``tensor_parallel`` of them from ``device`` on, with tokenizer and adapters.

    Folders are as in a config file: paths, or ``demo:NAME``. Keywords beside those named are the settings of
    ``punica_serve.config.engine_section.EngineConfig``. Raises ModelRejected, ConfigError or AdapterRejected when
    something can't be served. An LLM has its devices until ``close``, the end of its ``with`` block, or until nothing
    refers to it: a notebook's cell that makes one again must close the first, which its name still refers to.
    """

    def __init__(
        self,
        model: str | Path,
        adapters: Mapping[str, str | Path] | None = None,
        *,
        device: str = "cpu",
        tensor_parallel: int = 1,
        strict_base: bool = False,
        **settings: Any,
    ) -> None:
        devices = device_of(device, tensor_parallel)
        cluster = cluster_of(model, adapters, strict_base, settings)
        config = cluster.engine
        shape = read_model_config(config.model)
        self.tokenizer = Tokenizer.from_folder(config.tokenizer_folder)
        shared = shared_adapters(cluster, shape)
        for name, refusal in shared.rejected.items():
            raise AdapterRejected(f"adapter {name!r}: {refusal}", param=refusal.param)
        self._adapters = RegistrySnapshot(shared=shared)
        with open_llms.naming_open_ones(devices):
            self.engine = start_engine(config, shape, devices)
        open_llms.opened(self, devices)
        self._closing = close_when_dropped(self, self.engine) if self.engine.ranks else None
        self._is_open = True
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

        ``lora_ids`` and ``params`` are one for all prompts, or one each. Without ``params`` an answer is greedy and has
        at most 16 tokens; SamplingParams(max_tokens=...) takes more. Raises InvalidRequest, of several prompts with the
        wrong one's index, or AdapterNotFound before anything runs; an adapter that fails while it loads fails its own
        prompts only.
        """
        if not self._is_open:
            raise InvalidRequest("this LLM is closed; ask it inside its `with` block, or make another")
        stops = list_of_stops(stop)
        requests = list(self._requests(list_of_prompts(prompts), lora_ids, params))
        answers = {request.request_id: Answer(request.prompt_ids, lora_id) for request, lora_id in requests}
        try:
            for index, (request, _) in enumerate(requests):
                with naming("prompts", index, len(requests)):
                    self.engine.add(request)
            texts = {request.request_id: self._text_of(request, stops) for request, _ in requests}
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
        check_messages(messages)
        text = self.tokenizer.render_chat(messages)
        prompt = self.tokenizer.encode(text, add_special_tokens=False)
        return self.generate([prompt], lora_id, params, **options)[0]

    def close(self) -> None:
        """May be called again."""
        self._is_open = False
        open_llms.closed(self)
        if self._closing is not None:
            self._closing.detach()
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
        lora_per_prompt = list_of_lora_ids(lora_ids, len(prompts))
        params_per_prompt = list_of_params(params, len(prompts))
        for prompt, lora_id, sampling in zip(prompts, lora_per_prompt, params_per_prompt, strict=True):
            prompt_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            adapter = None if lora_id is None else self._adapter(lora_id)
            self._num_requests += 1
            request_id = f"{self._num_requests}"
            yield Request(request_id, time.time_ns(), tuple(prompt_ids), sampling, adapter), lora_id

    def _adapter(self, lora_id: str) -> AdapterRef:
        """Raises AdapterNotFound."""
        try:
            return self._adapters.adapter(DEFAULT_TENANT, lora_id).ref
        except AdapterNotFound as error:
            names = ", ".join(map(repr, self._adapters.shared.versions)) or "none"
            message = f"no adapter is called {lora_id[:MAX_SHOWN_CHARS]!r}; LLM(adapters=...) was given {names}"
            raise AdapterNotFound(message, param="lora_ids") from error

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
        for request_id, num_cached_tokens in output.cached:
            answers[request_id].num_cached_tokens = num_cached_tokens
        for failure in output.failures:
            for request_id in failure.request_ids:
                answers[request_id].finish_reason, answers[request_id].error = "error", failure.error.message


def _progress(*, disable: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.0f} tok/s"),
    )
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=disable)
