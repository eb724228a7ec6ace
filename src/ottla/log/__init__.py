"""log: one partition's bytes on disk, in Kafka's own format. Knows: model, env.

Never: sockets, replicas, wire messages.
"""
