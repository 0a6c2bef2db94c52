"""The values that a key can hold. Pure: time is an argument, and there is no socket and no RESP here."""
