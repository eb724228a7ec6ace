"""admin: what people and services ask a cluster and change in it. Knows: client, wire, security, model.

Works with every Kafka cluster. The command line, the console and the monitor use it; it prints nothing and reads no
options. Every error is a `Failure`, whose message says what to do next.
"""
