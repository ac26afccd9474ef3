"""A client with keys of its own, which knows what each value must be."""

import hashlib
import random
import socket
import sys

KEYS, BATCH, ROUNDS = 30000, 200, 2
me = int(sys.argv[2])


def value(key, age):
    r = random.Random(key * 4 + me * 2 + age)
    return r.randbytes(300) + b"%d %d " % (key, age) * r.randrange(100, 200)


conn = socket.socket(socket.AF_UNIX)
conn.connect(sys.argv[1])
answers = conn.makefile("rb")


def write(keys, age):
    for n in range(0, len(keys), BATCH):
        some = keys[n:n + BATCH]
        lines = []
        for k in some:
            v = value(k, age)
            lines.append(b"set k%d-%d 0 0 %d\r\n%s\r\n" % (me, k, len(v), v))
        conn.sendall(b"".join(lines))
        for k in some:
            assert answers.readline() == b"STORED\r\n", k


def read(key):
    line = answers.readline()
    assert line.startswith(b"VALUE "), (key, line)
    data = answers.read(int(line.split()[3]) + 2)[:-2]
    assert answers.readline() == b"END\r\n", key
    return data


seen = hashlib.sha256()
write(range(KEYS), 0)
write(range(0, KEYS, 4), 1)
for _ in range(ROUNDS):
    for n in range(0, KEYS, BATCH):
        some = range(n, min(n + BATCH, KEYS))
        conn.sendall(b"".join(b"get k%d-%d\r\n" % (me, k) for k in some))
        for k in some:
            data = read(k)
            assert data == value(k, 1 if k % 4 == 0 else 0), k
            seen.update(data)
print(me, seen.hexdigest())
