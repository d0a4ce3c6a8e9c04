"""`punica-serve up`: a whole cluster from one config file.

command    options, and what is refused before anything starts
plan       which processes there are, and their command lines
local      the processes as children of this one
readiness  waits until they serve, and says so
"""

from punica_serve.cli.up.command import command

__all__ = ["command"]
