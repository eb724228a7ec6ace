"""apis: one function per Kafka API. Produce and Fetch by hand, the others on decoded messages.

A handler takes a request and returns the response; versions are the codec's business. Each carries its card.
"""
