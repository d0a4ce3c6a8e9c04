"""The adapters of the config file, which everybody may use. They exist in that file only, not in the database."""

import hashlib
import logging
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from threading import Event

from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME, read_adapter, unreadable
from punica_serve.adapters.peft_config import parse_peft_config
from punica_serve.adapters.pool_fit import check_fits_pool
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import AdapterRejected, InvalidRequest, PunicaError, StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.registry.checked_adapters import CheckedAdapters
from punica_serve.registry.names import SHARED_TENANT, check_adapter_name
from punica_serve.registry.records import AdapterVersion, ServedBase
from punica_serve.registry.shared_adapters import SharedAdapters
from punica_serve.store.validator import read_chat_template

#: Adapters that are checked at once.
_NUM_READERS = 4
#: Enough to tell base models apart.
_NUM_SHAPE_DIGITS = 16

logger = logging.getLogger(__name__)


def shared_adapters(
    config: ClusterConfig,
    model: ModelConfig,
    *,
    stop: Event | None = None,
    checked: CheckedAdapters | None = None,
) -> SharedAdapters:
    """Reads every folder of `adapters:`, and leaves out those that can't be served. Blocks until done.

    Dummy adapters are added where no folder has the name. Weights that are ``checked`` are not read. If another thread
    sets ``stop``, it stops after the current folders and raises CancelledError.
    """
    folders = config.adapters

    def read(name: str) -> AdapterVersion | AdapterRejected:
        if stop and stop.is_set():
            raise CancelledError
        try:
            return read_shared(name, config, model, checked)
        except (AdapterRejected, InvalidRequest, StoreUnavailable) as error:
            return _refused(name, error)

    with ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="adapter-reader") as readers:
        results = dict(zip(folders, readers.map(read, folders), strict=True))
    dummies = dummy_adapters(config.dummy_adapters, model)
    return SharedAdapters(
        versions={
            **{name: _shared(name, ref) for name, ref in dummies.items()},
            **{name: result for name, result in results.items() if isinstance(result, AdapterVersion)},
        },
        rejected={name: result for name, result in results.items() if isinstance(result, AdapterRejected)},
        base=served_base(config.engine.served_name, model),
        strict_name=model.name if config.strict_base else None,
    )


def read_shared(
    name: str, config: ClusterConfig, model: ModelConfig, checked: CheckedAdapters | None = None
) -> AdapterVersion:
    """Reads and checks the adapter ``name`` of ``config``. Blocks while its file is read, unless it is ``checked``.

    Raises InvalidRequest for its name, AdapterRejected, and StoreUnavailable if this machine can't check it now.
    """
    check_adapter_name(name, base_name=config.engine.served_name)
    folder = config.adapters[name]
    try:
        ref = checked.find(folder, shape_of(model)) if checked else None
        version = _read(name, folder, ref or read_adapter(folder, model, strict_base=config.strict_base))
    except OSError as error:  # it disappeared after it was read
        raise unreadable(error) from error
    check_fits_pool(version.ref, config.engine.lora_pages, config.engine.lora_limits)
    return version


def served_base(name: str, model: ModelConfig) -> ServedBase:
    """The base model of a service, which calls it ``name``, for comparison with those of other services."""
    return ServedBase(name, shape_of(model))


def shape_of(model: ModelConfig) -> str:
    """Equal for base models that the same adapters fit."""
    spec = model.spec
    # Sorted: registries keep the shape, so it must not change with the order in which a release stacks modules.
    modules = sorted(
        (module.name, module.in_features, module.out_features) for group in spec.groups for module in group.projections
    )
    shape = repr((spec.num_layers, modules, model.vocab_size, model.hidden_size))
    return hashlib.sha256(shape.encode()).hexdigest()[:_NUM_SHAPE_DIGITS]


def _refused(name: str, error: PunicaError) -> AdapterRejected:
    """Makes a new error: the old one's traceback would keep the refused adapter in memory."""
    logger.warning("adapter %r is refused: %s", name, error)
    where = error.where if isinstance(error, AdapterRejected) else ""
    return AdapterRejected(error.message, param=error.param, where=where)


def _read(name: str, folder: Path, ref: AdapterRef) -> AdapterVersion:
    base_model = parse_peft_config((folder / CONFIG_NAME).read_bytes()).base_model_name_or_path
    created_s = (folder / WEIGHTS_NAME).stat().st_mtime
    return _shared(name, ref, base_model=base_model, chat_template=read_chat_template(folder), created_s=created_s)


def _shared(
    name: str,
    ref: AdapterRef,
    *,
    base_model: str | None = None,
    chat_template: str | None = None,
    created_s: float = 0.0,
) -> AdapterVersion:
    return AdapterVersion(
        tenant_id=SHARED_TENANT,
        tenant=SHARED_TENANT,
        name=name,
        version=1,
        ref=ref,
        source_uri=ref.uri,
        base_model=base_model,
        chat_template=chat_template,
        pinned=False,
        created_s=created_s,
    )
