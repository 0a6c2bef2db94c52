"""Users and what they may do. (Filled in by the ACL step; this is the interface dispatch stands on.)"""

from __future__ import annotations


class User:
    def __init__(self, name: str) -> None:
        self.name = name
        self.needs_no_password = True
        self.unrestricted = True  # enabled, all commands, all keys, all channels: dispatch skips the gate


class AccessControl:
    def __init__(self) -> None:
        self.default = User("default")
