"""The bit-parallel longest common subsequence against the textbook table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.types.subsequence import longest_length, longest_matches

words = st.lists(st.sampled_from(b"abc"), max_size=12).map(bytes)


def by_table(a: bytes, b: bytes) -> bytes:
    """One longest common subsequence, the slow way, going left where two paths are equally long."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if x == y else max(table[i - 1][j], table[i][j - 1])
    found = bytearray()
    i, j = len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            found.append(a[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return bytes(found[::-1])


@given(words, words)
def test_the_same_subsequence_as_by_table(a: bytes, b: bytes) -> None:
    matches = longest_matches(a, b)
    assert b"".join(a[m.first : m.first + m.length] for m in reversed(matches)) == by_table(a, b)
    assert all(a[m.first : m.first + m.length] == b[m.second : m.second + m.length] for m in matches)
    assert longest_length(a, b) == len(by_table(a, b))
