"""The command line of a rank's process. Free of torch."""

import sys
import threading

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.store.packed_folder import PackedCache

#: The module that it runs.
_MODULE = "punica_serve.engine.rank_main"


class RankCommand:
    """Those of one group's ranks on this host."""

    def __init__(
        self, config: EngineConfig, settings: GroupSettings, packed_cache: PackedCache | None, num_ranks: int
    ) -> None:
        """``num_ranks``: of the whole group."""
        self._settings = settings
        self._options = {
            "engine-config": config.model_dump_json(),
            "size": f"{num_ranks}",
            "log-level": settings.log_level,
            "log-format": settings.log_format,
            "ready-timeout-s": f"{settings.ready_timeout_s}",
        }
        if packed_cache is not None:
            self._options["cache-folder"] = f"{packed_cache.folder}"
            self._options["cache-bytes"] = f"{packed_cache.budget_bytes}"

    def of(self, index: int, device: str) -> list[str]:
        """``device``: as it is called on this host."""
        options = {
            **self._options,
            "device": device,
            "rank": f"{index}",
            "exchange-timeout-s": f"{self._settings.exchange_limit_s(device)}",
            "name": f"{self._settings.name} {index}",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        ends_with_thread = ["--ends-with-parent"] if threading.current_thread() is threading.main_thread() else []
        return [sys.executable, "-P", "-m", _MODULE, *words, *ends_with_thread]
