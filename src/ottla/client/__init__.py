"""client: a Kafka client with a core without I/O (`protocol`), a blocking and an asyncio face. Knows: wire, security.

Never: the broker. Works with any broker that speaks Kafka's protocol. The asyncio face also knows `net`.
"""
