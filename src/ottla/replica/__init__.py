"""replica: partitions that this broker holds, what is committed in them, and who waits for it. Knows: log, env, model.

Never: wire messages, sockets, the metadata store.
"""
