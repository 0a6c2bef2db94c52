"""`python -m penstock` is `penstock`."""

from penstock.cli.start import start

start()
