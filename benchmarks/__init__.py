"""benchmarks: Ottla's broker beside Apache Kafka, on the same machine, with the same client.

Knows: both brokers as processes, the wire, /proc.
Never: Ottla's own modules; it is measured from outside, like Kafka.
"""
