"""Replicas: a server that follows another one keeps a copy of its data and of its log.

    frames.py            the feed on the wire: batches of the log, and messages beside it
    link.py              the leader's side of one replica: what it was sent, and what it has
    replicas.py             all replicas of a server: who follows, what must be kept for them
    waits.py             WAIT and WAITAOF
    leader_connection.py a replica's connection to its leader: log in, ask, read replies
    copying.py           a replica fetches files of its leader
    diverged.py          what a leader has logged and its successor has not
    follower.py          a replica follows: from the first connection to the thousandth
    failover.py          FAILOVER: a leader hands over to a replica
    roles.py             a server leads or follows, and how it comes from one to the other
    description.py       INFO replication and ROLE
    shard.py             a server of a shard: what its agent says, and what it tells the agent
    in_sync.py           the nodes that have everything that was acknowledged
    log_identity.py      what a node of a shard knows about its own log
    replication.py       all of it, as commands ask for it

docs/replicas.md says what users can rely on, docs/design/0024-replicas.md and 0025-shards.md
why it is made so.
"""
