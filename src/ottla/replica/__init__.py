"""replica: the partitions of this broker, their high watermarks, parked fetches and produces, copies of other leaders.

Knows: log, env, model. Never: the metadata store. Only `fetcher.py`, which copies logs from other brokers, uses net and
wire.
"""
