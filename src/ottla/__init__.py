"""Ottla: an event-streaming platform for Python teams that speaks the Apache Kafka protocol."""

__version__ = "0.1.0"
