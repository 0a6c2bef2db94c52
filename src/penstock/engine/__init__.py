"""Runs commands: the keyspace, sessions, gates, dispatch, blocking, transactions. No sockets, no files."""
