"""monitor: `ottla monitor`, lag in records and in time, Burrow's evaluation, metrics and alerts.

Knows: health, lag, edge.web. Talks to a cluster only through the Kafka protocol.
"""
