"""env: the doors to the outside, each replaceable: time, disk, threads, metrics.

Knows: the operating system. Never: Kafka.
"""
