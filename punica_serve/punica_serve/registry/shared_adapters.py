"""A service's own adapters, and which of the registry's fit its base model. Pure: no database, no files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from punica_serve.base_model.base_name import is_other_base
from punica_serve.errors import AdapterRejected
from punica_serve.registry.names import SHARED_TENANT
from punica_serve.registry.records import AdapterVersion, ServedBase


@dataclass(frozen=True)
class SharedAdapters:
    """A service's own: its base model, the adapters of its config file, and why some are not served. Not in the
    database.
    """

    versions: Mapping[str, AdapterVersion] = field(default_factory=dict)
    rejected: Mapping[str, AdapterRejected] = field(default_factory=dict)
    #: None in a process that serves nothing.
    base: ServedBase | None = None
    #: With ``strict_base``: the base model's own name, which the configuration of each adapter must have.
    strict_name: str | None = None

    def has(self, tenant_id: str, name: str) -> bool:
        """Whether the config file has an adapter of this name, served or not."""
        return tenant_id == SHARED_TENANT and (name in self.versions or name in self.rejected)

    def serves(self, adapter: AdapterVersion) -> bool:
        """Whether the adapter fits this service's base model, as far as is known: another service's may be listed."""
        return self._has_shape(adapter) and self._has_name(adapter)

    def check_served(self, adapter: AdapterVersion) -> None:
        """Raises AdapterRejected for an adapter of another service's base model, with both models' names."""
        if not self._has_shape(adapter):
            assert self.base and adapter.registered_for
            ours, theirs = self.base.name, adapter.registered_for.name
            raise AdapterRejected(
                f"adapter {adapter.full_name!r} was registered for the base model {theirs!r}, and this service's is"
                f" {ours!r}, of another shape; ask the service of {theirs!r}, or register an adapter of {ours!r} here",
                param="lora_id",
            )
        if not self._has_name(adapter):
            raise AdapterRejected(
                f"the `base_model_name_or_path` of adapter {adapter.full_name!r} is {adapter.base_model!r}, and this"
                f" service's base model is {self.strict_name!r}; ask a service of the adapter's base model, or"
                " unset `strict_base`",
                param="lora_id",
            )

    def _has_shape(self, adapter: AdapterVersion) -> bool:
        """Whether it was registered for a base model of this shape, or nobody knows for which."""
        base, others = self.base, adapter.registered_for
        return base is None or others is None or others.shape == base.shape

    def _has_name(self, adapter: AdapterVersion) -> bool:
        """Whether it names this base model, where it must. Those of the config file were checked as they were read."""
        name = self.strict_name
        return name is None or adapter.tenant_id == SHARED_TENANT or not is_other_base(adapter.base_model, name)
