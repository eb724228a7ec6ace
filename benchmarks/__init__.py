"""benchmarks: Ottla's broker beside Apache Kafka, its Spark source beside Spark's own; same machine, same client.

Knows: both brokers as processes, the wire, /proc, a Spark program for either engine.
Never: the broker's own modules; it is measured from outside, like Kafka.
"""
