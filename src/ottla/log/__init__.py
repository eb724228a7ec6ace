"""log: the logs of partitions on disk, in Kafka's file format. Imports: model, env.

Never touches: sockets, replicas, wire messages.
"""
