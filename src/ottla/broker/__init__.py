"""broker: the composition root and the API handlers. May import every package of the broker.

Never imports client, spark, pipeline or demo: they reach the broker over the protocol, like any client.
"""
