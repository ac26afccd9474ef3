"""Pools of workers over a table that each of them has; what they return is put together."""

import hashlib
import multiprocessing
import sys


def make_table():
    return {n: (b"%d-" % n) * (n % 90 + 10) for n in range(200_000)}


if sys.argv[1] == "fork":
    table = make_table()
else:
    table = None


def work(part):
    global table
    if table is None:
        table = make_table()
    h = hashlib.sha256()
    mine = {}
    for n in range(part, len(table), 16):
        mine[n] = table[n][::-1]
        h.update(mine[n])
    for n in range(part, len(table), 16):
        assert mine[n][::-1] == table[n], n
    # A quarter of the table is replaced, which the others must not see.
    for n in range(part % 4, len(table), 4):
        assert table[n] == (b"%d-" % n) * (n % 90 + 10), n
        table[n] = bytes(table[n])
    return h.hexdigest(), [bytes([part]) * 65536] * 4


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    whole = hashlib.sha256()
    for _ in range(2):
        with context.Pool(3) as pool:
            for part, (digest, blobs) in enumerate(pool.imap(work, range(8))):
                assert all(b == bytes([part]) * 65536 for b in blobs)
                whole.update(digest.encode())
    print(whole.hexdigest())
