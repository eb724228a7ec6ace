"""spark: topics and lake tables as Spark sees them. Knows: client, model, pyarrow, numpy; pyspark at its edges.

Never imports the broker's packages or pipelines.
"""
