"""Sockets, signals and the process: the parts that turn an engine into a server."""
