"""env: interfaces to the operating system, which tests can replace: clocks, disk, threads, timers, metrics.

Knows: the operating system. Never: Kafka.
"""
