"""Durability: snapshots, the append-only log, and the checks of both."""
