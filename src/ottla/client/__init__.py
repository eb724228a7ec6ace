"""client: a blocking and an asyncio Kafka client, with a common core without I/O (`protocol`). Knows: wire, security.

Never: the broker. Works with any broker that speaks Kafka's protocol. The asyncio client also knows `net`.
"""
