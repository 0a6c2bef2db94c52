"""The slot of a key, out of a cluster's 16384; server and client must agree on it.

The slot is the CRC-16 (XMODEM) of the key, or of its hash tag: the text between the first `{` and the next `}`, if that
is not empty. So `{user:1}.name` and `{user:1}.cart` share a slot and may be used in one command.
"""

from __future__ import annotations

from binascii import crc_hqx

SLOTS = 16384


def key_slot(key: bytes) -> int:
    """O(length of the key), in C.

    >>> key_slot(b"123456789") == 0x31C3, key_slot(b"{user:1}.name") == key_slot(b"{user:1}.cart")
    (True, True)
    """
    opened = key.find(b"{")
    if opened >= 0:
        closed = key.find(b"}", opened + 1)
        if closed > opened + 1:
            key = key[opened + 1 : closed]
    return crc_hqx(key, 0) % SLOTS
