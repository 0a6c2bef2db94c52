"""Schemas of streams. `fields.py` says what they are."""
