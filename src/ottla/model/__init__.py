"""model: the words of the house. Knows: nothing but the standard library and CRC32C.

Never: sockets, files, asyncio, other rooms.
"""
