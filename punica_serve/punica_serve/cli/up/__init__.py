"""`punica-serve up`: runs a whole cluster from one config file.

command         options, and checks before anything starts
written_config  the config file of `--model`
given_adapters  checks the adapters of `--adapter`
plan            the processes, and their command lines
local           the processes as children of this one
readiness       waits until they serve, and prints how to use them
"""

from punica_serve.cli.up.command import command

__all__ = ["command"]
