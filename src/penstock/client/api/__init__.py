"""What callers use: the two clients, their pipelines, stream commands, consumers, tables."""
