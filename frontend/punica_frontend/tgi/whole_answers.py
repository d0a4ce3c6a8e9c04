"""Whole answers of POST /generate. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from punica_frontend.generation.answers import GenerateAnswer
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.openai.best_of import mean_logprob
from punica_frontend.tgi.answers import BestOfSequence, Details, Generated, PrefillToken
from punica_frontend.tgi.body import LoraxBody
from punica_frontend.tgi.transcript import Transcript
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer


def generated(
    body: LoraxBody,
    plans: Sequence[RequestPlan],
    answers: Sequence[GenerateAnswer],
    tokenizer: Tokenizer,
    texts: TokenTexts,
) -> Generated:
    """Returns the best of the answers, with the others in its details."""
    given = body.given
    drawn = list(zip(plans, answers, strict=True))
    if len(drawn) > 1:
        drawn.sort(key=lambda pair: mean_logprob(pair[1]), reverse=True)
    transcripts = [(Transcript(tokenizer, texts, plan, given), answer) for plan, answer in drawn]
    if not given.has_details:
        transcript, answer = transcripts[0]
        for token_id in answer.token_ids:
            transcript.add(token_id)
        return Generated(_with_inputs(body, transcript.whole_text()))
    prompt_ids = plans[0].request.prompt_ids
    prefill = [PrefillToken(token_id, texts.text(token_id)) for token_id in prompt_ids]
    prefill = prefill if given.decoder_input_details else []
    best, *others = [_sequence(body, transcript, answer, prefill) for transcript, answer in transcripts]
    text = best.pop("generated_text")
    rest = [BestOfSequence(**other) for other in others] if others else msgspec.UNSET
    return Generated(text, Details(**best, prompt_tokens=len(prompt_ids), best_of_sequences=rest))


def _sequence(
    body: LoraxBody, transcript: Transcript, answer: GenerateAnswer, prefill: list[PrefillToken]
) -> dict[str, Any]:
    """Returns the fields that all sequences have."""
    assert not isinstance(answer.logprobs, msgspec.UnsetType)
    tokens = [transcript.token(entry) for entry in answer.logprobs]
    top = [transcript.top_tokens(entry) for entry in answer.logprobs]
    return {
        "generated_text": _with_inputs(body, transcript.whole_text()),
        "finish_reason": transcript.finish_reason(answer.finish_reason),
        "generated_tokens": len(tokens),
        "seed": transcript.seed,
        "prefill": prefill,
        "tokens": tokens,
        "top_tokens": top if body.given.top_n_tokens else msgspec.UNSET,
    }


def _with_inputs(body: LoraxBody, text: str) -> str:
    return body.inputs + text if body.given.return_full_text else text
