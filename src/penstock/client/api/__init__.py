"""The public interface: the two clients, their pipelines, stream commands, consumers, tables."""
