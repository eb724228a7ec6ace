"""client: a cluster as somebody outside sees it, over blocking sockets. Knows: wire, model.

Never: the broker wing. Works with any broker that speaks Kafka's protocol.
"""
