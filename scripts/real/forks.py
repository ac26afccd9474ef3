"""Memory that is filled, forked, replaced on both sides and checked."""

import hashlib
import os


def page(n, age):
    return (b"%d,%d " % (n, age) * 400)[:2000]


pages = {n: page(n, 0) for n in range(40000)}
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for n in range(child, len(pages), 5):
            pages[n] = page(n, child + 1)
        good = all(pages[n] == page(n, child + 1 if n % 5 == child else 0) for n in pages)
        os._exit(0 if good else 1)
    children.append(pid)
for n in range(0, len(pages), 4):
    pages[n] = page(n, 9)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
whole = hashlib.sha256()
for n in pages:
    assert pages[n] == page(n, 9 if n % 4 == 0 else 0), n
    whole.update(pages[n])
print(whole.hexdigest())
