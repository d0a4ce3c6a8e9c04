"""The config section `log`: the format and content of the logs."""

from punica_serve.config.fields import ConfigModel, Flag
from punica_serve.process.logs import LogFormat


class LogConfig(ConfigModel):
    """Format and content of the logs, which go to standard error. --log-level sets the level."""

    #: text: for people. json: one object per line.
    format: LogFormat = LogFormat.TEXT
    #: Log one line at level info when a request ends, with its tokens and times.
    requests: Flag = True
