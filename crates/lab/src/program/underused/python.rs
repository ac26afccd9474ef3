//! A real python3.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::compiler;
use crate::LabError;

/// Records in dictionaries, an index of them, their text and its parsing, a filter that is large
/// because many keys might come; then most of the records go, others come, and all are checked.
const SCRIPT: &str = r#"
import json, random, sys, time
start = time.perf_counter()
random.seed(1)
N = 30000
BITS = 64 << 20

def record(i):
    return {"id": i, "name": "user%d" % (i * 7919 % N), "tags": [i % 7, i % 11], "score": i / 2}

def place(key):
    return key * 2654435761 % BITS

records = {i: record(i) for i in range(N)}
index = {}
for r in records.values():
    index.setdefault(r["tags"][1], []).append(r["id"])
filter = bytearray(BITS)
for i in range(0, N, 30):
    filter[place(i)] = 1
text = json.dumps(list(records.values()))
assert json.loads(text) == list(records.values())
del text
for i in random.sample(range(N), N * 7 // 8):
    del records[i]
index.clear()

before = time.perf_counter()
print("settle", flush=True)
sys.stdin.readline()
start += time.perf_counter() - before

for i in range(N, N + N // 2):
    records[i] = record(i)
for i in range(0, N, 30):
    assert filter[place(i)] == 1
for i, r in records.items():
    assert r == record(i)
for _ in range(20):
    assert sum(r["score"] for r in records.values()) > 0
print("took: %.6f" % (time.perf_counter() - start), flush=True)
"#;

/// Becomes python3; returns only why it cannot.
pub(super) fn run() -> LabError {
    compiler::none(
        "python3",
        &Command::new("python3").args(["-c", SCRIPT]).exec(),
    )
}
