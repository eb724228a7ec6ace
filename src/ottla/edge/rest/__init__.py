"""rest: the REST proxy, versions 2 and 3 of Confluent's API, and reading a topic as a stream. Knows: web, client, wire.

Never: the broker wing. It uses the cluster through the Kafka protocol only, so it works with Apache Kafka too.
"""
