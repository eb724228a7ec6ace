"""net: sockets to frames and back. Knows: model, env. Gets a handler to call.

Never: the log, the broker. Only `client.py`, which sends requests to other brokers, knows what a frame means.
"""
