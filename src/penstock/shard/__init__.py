"""Shards: servers of which etcd decides which one leads. This is the agent of a server, a process of its own.

    etcd.py       a client of etcd
    records.py    what etcd holds about a shard
    election.py   which node leads next
    lease.py      the lease of a node, and until when it holds for certain
    child.py      the server, as its agent sees it
    agent.py      the agent: from what etcd holds to what the server does
    settings.py   the directives that it needs

replication/shard.py is the other end, in the server. docs/replicas.md says what users can rely on,
docs/design/0025-shards.md why it is made so.
"""
