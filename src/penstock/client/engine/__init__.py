"""The sans-I/O core of a client: time and bytes go in, bytes and finished commands come out. No socket, no thread, no
clock.
"""
