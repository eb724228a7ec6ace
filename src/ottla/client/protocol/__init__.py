"""protocol: what a Kafka client decides, without I/O: frames, handshakes, leaders. Knows: wire, model.

Never: sockets, the event loop, clocks. The blocking client (`client/connection.py`, `client/cluster.py`), the asyncio
client (`client/async_connections.py`) and the client for tests (`testing/raw.py`) do the I/O.
"""
