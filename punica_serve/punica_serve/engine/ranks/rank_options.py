"""The settings of a rank's process, which its parent tells it once it knows them. Free of torch."""

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.protocol import Message
from punica_serve.store.packed_folder import PackedCache


class RankOptions(Message, frozen=True):
    """One rank's."""

    #: JSON.
    engine_config: str
    #: As it is called on this host.
    device: str
    rank: int
    #: Ranks of the whole group.
    size: int
    #: The process's, in its logs.
    name: str
    log_level: str
    log_format: str
    ready_timeout_s: float
    exchange_timeout_s: float
    #: So long the leader waits to learn which rank is gone.
    silence_timeout_s: float
    #: The host's adapters on disk, and all that this folder may take.
    cache_folder: str | None
    cache_bytes: int


class GroupOptions:
    """Those of one group's ranks on this host."""

    def __init__(
        self, config: EngineConfig, settings: GroupSettings, packed_cache: PackedCache | None, num_ranks: int
    ) -> None:
        """``num_ranks``: of the whole group."""
        self._config = config.model_dump_json()
        self._settings = settings
        self._packed_cache = packed_cache
        self._num_ranks = num_ranks

    def of(self, index: int, device: str) -> RankOptions:
        """``device``: as it is called on this host."""
        settings, cache = self._settings, self._packed_cache
        return RankOptions(
            engine_config=self._config,
            device=device,
            rank=index,
            size=self._num_ranks,
            name=f"{settings.name} {index}",
            log_level=settings.log_level,
            log_format=settings.log_format,
            ready_timeout_s=settings.ready_timeout_s,
            exchange_timeout_s=settings.exchange_limit_s(device),
            silence_timeout_s=settings.silence_timeout_s,
            cache_folder=f"{cache.folder}" if cache is not None else None,
            cache_bytes=cache.budget_bytes if cache is not None else 0,
        )
