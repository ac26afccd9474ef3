"""Fills a table in memory, looks rows up at random, and walks an index; prints what it has seen."""

import hashlib
import random
import sqlite3

ROWS = 300_000
rng = random.Random(1)
db = sqlite3.connect(":memory:")
db.execute("create table t (k integer primary key, a text, b blob)")
db.execute("create index i on t (a)")
for k in range(ROWS):
    db.execute("insert into t values (?, ?, ?)", (k, f"{rng.getrandbits(64):016x}", rng.randbytes(300)))
seen = hashlib.sha256()
for _ in range(ROWS // 8):
    (blob,) = db.execute("select b from t where k = ?", (rng.randrange(ROWS),)).fetchone()
    seen.update(blob)
for (text,) in db.execute("select a from t order by a limit ?", (ROWS // 4,)):
    seen.update(text.encode())
print(seen.hexdigest())
