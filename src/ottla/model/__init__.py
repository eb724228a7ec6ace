"""model: the words of the house. Knows: the standard library, CRC32C and the codecs of batches.

Never: sockets, files, asyncio, other rooms.
"""
