"""The sans-I/O engine of a client: time and bytes go in, bytes and settled commands come out. No socket, no thread, no clock."""
