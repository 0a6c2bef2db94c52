"""A Redis client that knows what happened to every command.

The engine (engine.py) is sans-I/O: bytes and the time go in, bytes and settled commands come out. sync.py and aio.py only
drive it. Both clients are subclasses of redis-py's, so every command method, URL and option of redis-py works:

    protocol.errors
      ^
    delivery, errors, events, commands, encoding      what a level, a state, an error, a kind of command is
      ^
    batch <- session, once, backoff <- engine         the FIFO, what a new connection must be told, ONCE numbers
      ^
    opening, parking <- sync_link, aio_link           the two drivers, and what they leave to the next client of a pool
      ^
    calls, pipeline, streams, consumer, tables <- body    what a method sends and returns, without the waiting
      ^
    sync, aio                                         the two clients
"""
