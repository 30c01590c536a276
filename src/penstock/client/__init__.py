"""The consumer: connect, read and write documents, follow changes; asyncio core, blocking front."""
