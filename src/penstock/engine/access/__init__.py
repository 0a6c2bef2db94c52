"""Users, their passwords and their permissions."""
