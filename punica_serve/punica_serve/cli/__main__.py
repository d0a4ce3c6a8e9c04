"""`python -m punica_serve.cli` is `punica-serve`: how `up` starts its processes without searching for a script."""

from punica_serve.cli import main

main()
