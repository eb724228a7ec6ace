"""produce: the Produce API. It parses its frames itself, because it is on the hot path."""
