"""FACTOR: a command that computes for long and needs little data.

    penstock serve --module examples/factor.py
    redis-cli SET n 1000000016000000063
    redis-cli FACTOR n

The number is read on the loop; the factors are found in a thread, while others are served. As a number never changes,
the thread needs no lock: `lock=False` lets others write to the key meanwhile.
"""

from __future__ import annotations

from math import gcd
from random import Random

from penstock.modules import ALWAYS, Access, Argv, Flag, Reply, ReplyError, Session, command, key, to_integer

WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Bases that tell every prime below 3e24 from a composite number."""


@command(
    "FACTOR", arity=2, flags=Flag.READONLY, keys=key(1, Access.READ), group="module", syntax="key",
    cost="O(N^1/4) with a number N, in a thread",
)  # fmt: skip
def factor(session: Session, argv: Argv) -> Reply:
    """Answer the prime factors of the number at key, the smallest first; null if there is no such key."""
    text = session.db.find_string(argv[1])
    if text is None:
        return None
    number = to_integer(bytes(text))
    if number < 1:
        raise ReplyError("only positive numbers have prime factors")
    return session.aside(ALWAYS, lambda: sorted(factors(number)), lock=False)


def factors(number: int) -> list[int]:
    """The prime factors, in any order.

    >>> sorted(factors(2**5 * 3 * 1000003))
    [2, 2, 2, 2, 2, 3, 1000003]
    """
    found = []
    for prime in WITNESSES:
        while number % prime == 0:
            found.append(prime)
            number //= prime
    rest = [number] if number > 1 else []
    while rest:
        number = rest.pop()
        if is_prime(number):
            found.append(number)
        else:
            divisor = find_divisor(number)
            rest += [divisor, number // divisor]
    return found


def is_prime(number: int) -> bool:
    """Whether an odd number above the witnesses is prime (Miller and Rabin's test)."""
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    for witness in WITNESSES:
        power = pow(witness, (number - 1) >> twos, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return number in WITNESSES
    return True


def find_divisor(number: int) -> int:
    """A divisor of a composite number, other than 1 and itself (Pollard's rho)."""
    chance = Random(number)  # the same number takes the same way
    while True:
        step = chance.randrange(1, number)
        slow = fast = chance.randrange(number)
        divisor = 1
        while divisor == 1:
            slow = (slow * slow + step) % number
            fast = (fast * fast + step) % number
            fast = (fast * fast + step) % number
            divisor = gcd(abs(slow - fast), number)
        if divisor != number:
            return divisor
