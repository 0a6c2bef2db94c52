"""The client of a Redis or Valkey Cluster: pipelines over many nodes, and for every command what became of it.

The logic is generators without I/O; sync.py and aio.py only drive them:

    slot_map, routing, driver_requests, errors    the owner of a slot, the slot of a command, what logic asks for
      ^
    call_bounds                            how much may wait for replies, and the counters
      ^
    plan <- rounds <- pipeline <- strategies <- transaction, topology
      ^
    core <- calls                          what both clients share
      ^
    single_key_call                        the short way of a command with one key
    shared_connection, replies, pool       connections: one that all callers share, or one of their own
      ^
    sync_connections, interrupt_safe_lock <- sync
    aio_connections <- aio
    scripts                                register_script
"""
