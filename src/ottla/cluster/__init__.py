"""cluster: what the brokers of a cluster agree on, and the store that holds it. Knows: model, env.

Never: sockets of clients, wire messages, files of the log.
"""
