"""Sockets, signals, the command line's server: what turns an engine into a process that others talk to."""
