"""The client of a Redis or Valkey Cluster: pipelines over many nodes, and for every command what became of it.

The logic is generators without I/O; sync.py and aio.py only drive them:

    slot_map, routing, effects, errors     who owns a slot, which slot a command is of, what logic may ask for
      ^
    ledger                                 what is held and what was done
      ^
    plan <- pipeline <- strategies <- transaction, topology
      ^
    core <- calls                          what both clients share
      ^
    sharing, pool <- links, turns <- sync  connections: shared by all who call, or of one's own
                     aio_links <- aio
"""
