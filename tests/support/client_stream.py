"""A request as its frontend sees it."""

from dataclasses import dataclass, field

from punica_serve.protocol import Ending, Request


@dataclass
class ClientStream:
    """The tokens that a frontend was delivered. It believes nothing: each token must be the next."""

    frontend_id: str
    handle: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    num_load_failures: int = 0
    #: Workers lost that had applied a start of it, acknowledged or not.
    num_losses: int = 0
    has_run: bool = False
    end: Ending | None = None

    def take(self, position: int, token_id: int) -> None:
        assert self.end is None, f"a token at {position} after the end"
        assert position == len(self.tokens), f"a token at {position} after {len(self.tokens)} tokens"
        self.tokens.append(token_id)

    def take_end(self, ending: Ending) -> None:
        assert self.end is None, f"{ending} after the end"
        assert ending.num_tokens == len(self.tokens), f"{ending} after {len(self.tokens)} tokens"
        self.end = ending
