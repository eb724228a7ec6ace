"""metadata: what all brokers of a cluster know, the store that keeps it, and the pure decisions about it.

Never: sockets of clients, wire messages, files of the log.
"""
