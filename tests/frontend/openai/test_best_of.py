from punica_frontend.generation.answers import GenerateAnswer, Logprob, TokenUsage
from punica_frontend.openai.best_of import best_of_each


def answer(text: str, *logprobs: float) -> GenerateAnswer:
    of_tokens = tuple(Logprob(5, logprob, ()) for logprob in logprobs)
    return GenerateAnswer(
        "r", None, text, (5,) * len(logprobs), "stop", TokenUsage(1, len(logprobs), 1 + len(logprobs)), of_tokens
    )


def test_the_likeliest_per_token_of_each_prompt_come_first() -> None:
    first = [answer("long", -1, -1, -1), answer("short", -2), answer("sure", -0.1, -0.3)]
    second = [answer("empty"), answer("x", -1), answer("same", -1)]
    best = best_of_each(first + second, num_drawn=3, num_wanted=2)
    assert [each.text for each in best] == ["sure", "long", "empty", "x"]
