"""A Redis client that knows what happened to every command.

Both clients are subclasses of redis-py's, so every command method, URL and option of redis-py works. Arrows point to what is imported:

    delivery, errors, events, choice_by_name    levels and states, what went wrong, what is told of connections
      ^
    engine/     sans I/O: bytes and the time go in, bytes and finished commands come out
        connection       one logical connection: the states of its commands, replay
        batch            one or more commands that are finished together
        pending          the queue and its bounds
        writing          what goes out next, and how far it came
        replies          bytes to replies, each to its command
        large_reply      where a large reply is received
        handshake        what a connection begins with
        session_state    what a new connection must be told
        exactly_once     who numbers writes; once_numbers: the numbers on the wire
        command_kinds    which commands may share a connection
        encoding, backoff
      ^
    drivers/    sync (threads over one socket), aio (tasks over one transport)
        connecting, socket_io, polling, wake_up, pool_handoff
      ^
    api/        sync, aio: the two clients; shared: what they have in common
        calls, pipeline, shortcuts, scripts, streams, consumer, tables
      ^
    cluster/    the client of a Redis or Valkey Cluster
"""
