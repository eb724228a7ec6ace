"""demo: a shop whose events go through a broker and the pipeline `shop`. Knows: pipeline, spark, client, model.

Never: the broker wing; the broker it shows is a process like any other. `shop` is pure and knows what it has sent, so
that what comes out at the other end can be held against it.
"""
