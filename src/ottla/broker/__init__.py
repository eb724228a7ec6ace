"""broker: the composition root and the API handlers. May import every package of the broker.

Never imports spark, pipeline or demo, and of client only the client of the schema registry, which is another service:
they reach the broker over the protocol, like any client.
"""
