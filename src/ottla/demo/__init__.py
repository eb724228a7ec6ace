"""demo: a shop whose events go through a broker and the pipeline `shop`. Knows: pipeline, spark, client, model.

Never imports the broker's packages: the broker that it shows is a process like any other. `shop` is pure and knows the
events that it has sent, so that the results can be compared with them.
"""
