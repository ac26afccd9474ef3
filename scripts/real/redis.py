"""A client that knows what each value must be."""

import random
import socket
import sys

KEYS, BATCH = 40000, 500


def value(key, age):
    r = random.Random(key * 2 + age)
    return (b"%d:%d:" % (key, age) + r.randbytes(500) + b"some text again " * r.randrange(50, 150))


class Redis:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, *commands):
        out = []
        for words in commands:
            out.append(b"*%d\r\n" % len(words))
            out += [b"$%d\r\n%s\r\n" % (len(w), w) for w in words]
        self.socket.sendall(b"".join(out))
        return [self.answer() for _ in commands]

    def answer(self):
        line = self.file.readline()
        if line[:1] == b"$":
            data = self.file.read(int(line[1:]) + 2)
            return data[:-2]
        if line[:1] == b"*":
            return [self.answer() for _ in range(int(line[1:]))]
        return line.strip()


redis = Redis(sys.argv[1])


def write(keys, age):
    for n in range(0, len(keys), BATCH):
        some = keys[n:n + BATCH]
        answers = redis.send(*[(b"SET", b"key:%d" % k, value(k, age)) for k in some])
        assert answers == [b"+OK"] * len(some), answers


def check(age_of):
    for n in range(0, KEYS, BATCH):
        some = range(n, min(n + BATCH, KEYS))
        for k, v in zip(some, redis.send(*[(b"GET", b"key:%d" % k) for k in some])):
            assert v == value(k, age_of(k)), k


every = list(range(KEYS))
write(every, 0)
print("before:", redis.send((b"DEBUG", b"DIGEST"))[0].decode())
redis.send((b"BGSAVE",))
write(every[::3], 1)
check(lambda k: 1 if k % 3 == 0 else 0)
while True:
    info = redis.send((b"INFO", b"persistence"))[0]
    if b"rdb_bgsave_in_progress:0" in info:
        break
assert b"rdb_last_bgsave_status:ok" in info, info
check(lambda k: 1 if k % 3 == 0 else 0)
print("after:", redis.send((b"DEBUG", b"DIGEST"))[0].decode())
