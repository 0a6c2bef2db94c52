"""A Redis client that knows what happened to every command.

Both clients are subclasses of redis-py's, so every command method, URL and option of redis-py works. Arrows point to
what is imported:

    delivery, errors, events, choice_by_name    levels and states, what went wrong, what is told of connections
    dead_letters    how letters are put back, without I/O
    tracing/    OpenTelemetry: spans around calls; measures: metrics; context: what travels in messages
      ^
    engine/     sans I/O: bytes and the time go in, bytes and finished commands come out
        connection       one logical connection: the states of its commands, and its parts:
        pending          the queue and its bounds; room: the batches that wait for room in it
        writing          which bytes go out next, and how far they came
        replies          bytes to replies, each to its command
        recovery         what the end of a connection means for each command
        refused_by_replica  commands that a server did not run because it does not lead
        reconnecting     when to open the next connection; backoff: after which delay
        timeouts         deadlines of commands, and silent connections
        handshake        the commands that a connection begins with
        session_state    what a new connection must be told
        exactly_once     numbers for writes; once_numbers: the numbers on the wire; write_commands: which are writes
        batch            one or more commands that are finished together
        large_reply      where a large reply is received
        command_kinds    which commands may share a connection; declared: what their declarations say
        encoding         arguments to bytes
        leader           which server of a shard leads: what to ask, and what the answers mean
      ^
    drivers/    sync (threads over one socket), aio (tasks over one transport); base: what they share
        connecting       how redis-py opens a connection for us; pool_handoff: how the next client of a pool gets it
        leader_search    connections that look for the leader of a shard
        socket_io        one open socket; polling: how a thread waits for it
        write_turn       which thread may write; wake_chain, wake_up: how threads wake each other
      ^
    producer/   core: messages to windows of writes, sans I/O; sync, aio: the thread or task that sends them
        options, writes, outcomes, futures
      ^
    api/        sync, aio: the two clients; shared: what they have in common; options: what they take, for checkers
        urls             the URLs of servers and of shards
        calls, pipeline, shortcuts, scripts, streams, stream_replies, schemas, reply_fields, reply_types, tables, typed
        consumer         the old home of what is in consumer/
      ^
    consumer/   members of groups; imported by the clients of api/, imports their streams
        core             the workers, without I/O; steps: what they ask; sync, aio: threads and tasks that do it
        base             what the consumers of both clients share
        options, orders, sender, outages, pace, queues, worker_share, delivered, holdings, counts, handlers,
        stop_signals
        follow           a stream from an offset that the caller keeps
      ^
    cluster/    the client of a Redis or Valkey Cluster
"""
