"""fetch: the Fetch API, with its sessions. It parses its frames itself, because it is on the hot path."""
