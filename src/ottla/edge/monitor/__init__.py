"""monitor: `ottla monitor`, lag in records and in time, Burrow's evaluation, metrics and alerts.

Knows: health, lag, edge.web. Talks to a cluster only through the Kafka protocol. `reading.py` has what one round of
readings finds, `reader.py` reads it.
"""
