"""The lengths of a typical request, from those that have finished."""

#: How much each finished request changes the means.
_WEIGHT = 1 / 256


class TypicalRequest:
    """Means over the newest finished requests, weighted by age. Until one has finished, guesses from a chat."""

    __slots__ = ("num_answer", "num_prompt")

    def __init__(self) -> None:
        #: Tokens of prompt and answer.
        self.num_prompt, self.num_answer = 128.0, 128.0

    def finished(self, num_prompt: int, num_answer: int) -> None:
        self.num_prompt += _WEIGHT * (num_prompt - self.num_prompt)
        self.num_answer += _WEIGHT * (num_answer - self.num_answer)
