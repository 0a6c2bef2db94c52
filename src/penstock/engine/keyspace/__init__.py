"""What the server holds: databases, expiry times, cursors over keys, and the memory that all of it takes."""
