"""net: sockets to frames and back. Knows: model, env. Gets a handler to call.

Never: what a frame means, the log, the broker.
"""
