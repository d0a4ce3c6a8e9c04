"""Prompts of simulated requests: their tokens matter only where requests share pages of the KvCache."""


class SimulatedPrompts:
    """Zeros, made once for each length; or, where pages are shared, a prefix of the adapter's and tokens of its own."""

    def __init__(self, *, is_sharing: bool, shared_prefix_tokens: int) -> None:
        self._is_sharing = is_sharing
        self._shared_prefix_tokens = shared_prefix_tokens
        self._zeros: dict[int, tuple[int, ...]] = {}

    def of(self, number: int, length: int, adapter: int | None) -> tuple[int, ...]:
        """The prompt of request ``number``. ``adapter``: the number of its adapter."""
        if not self._is_sharing:
            return self._zeros.setdefault(length, (0,) * length)
        num_shared = min(length, self._shared_prefix_tokens)
        prefix = 0 if adapter is None else adapter + 1
        return (prefix,) * num_shared + (1 + number,) * (length - num_shared)
