"""apis: one handler per Kafka API. Produce and Fetch parse their frames themselves, the others get decoded messages.

A handler takes a request and returns the response; the codec handles versions. Its docstring lists API key, versions
and what each version added.
"""
