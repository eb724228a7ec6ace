"""cluster: the metadata that all brokers of a cluster share, and the store that holds it. Knows: model, env.

Never: sockets of clients, wire messages, files of the log.
"""
