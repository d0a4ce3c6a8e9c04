"""`python -m punica_serve.cli` is `punica-serve`. `up` starts its processes so, without looking for a script."""

from punica_serve.cli import main

main()
