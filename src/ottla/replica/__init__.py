"""replica: the partitions that this broker leads, their high watermarks, parked fetches and produces.

Knows: log, env, model. Never: wire messages, sockets, the metadata store.
"""
