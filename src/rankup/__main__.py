"""`python -m rankup` is `rankup`."""

from .cli import main

main()
