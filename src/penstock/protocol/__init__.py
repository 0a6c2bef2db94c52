"""Bytes to values and back: no I/O, no clock; the server and the client share it."""
