"""The config section `links`: how processes detect a peer that is frozen or gone."""

from typing import Self

from pydantic import model_validator

from punica_serve.config.fields import ConfigModel, Seconds


class LinksConfig(ConfigModel):
    """How the processes of a cluster detect a peer that is frozen or gone."""

    #: A process with nothing else to send for this long sends a heartbeat.
    heartbeat_s: Seconds = 2.0
    #: A peer that is silent for this long is disconnected. Its requests continue elsewhere, or when it is back.
    silence_s: Seconds = 10.0

    @model_validator(mode="after")
    def _leaves_time_to_speak(self) -> Self:
        if self.silence_s < 2 * self.heartbeat_s:
            raise ValueError("silence_s must be at least twice heartbeat_s, or healthy peers are disconnected")
        return self
