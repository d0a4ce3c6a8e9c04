"""The config section `ray`: the resources that `up --ray` reserves."""

from typing import Annotated

from pydantic import Field

from punica_serve.config.fields import ConfigModel, Name

#: Resources reserved on a Ray node, by Ray's names.
Resources = Annotated[dict[Name, Annotated[float, Field(gt=0)]], Field(min_length=1)]


class RayConfig(ConfigModel):
    """Resources that each process of `up --ray` reserves on its node, by Ray's names, such as {CPU: 1}."""

    scheduler: Resources = Field(default_factory=lambda: {"CPU": 1.0})
    frontend: Resources = Field(default_factory=lambda: {"CPU": 1.0})
    #: By default one CPU or GPU for each of `runner.devices`.
    runner: Resources | None = None
