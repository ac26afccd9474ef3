# sort of random lines, all of them in memory.
# packages: coreutils python3
# needs: sort python3

prepare() {
    python3 - > lines <<'END'
import random
rng = random.Random(2)
for i in range(1_000_000):
    print(f"{rng.getrandbits(128):032x} {i}")
END
}

job() {
    LC_ALL=C sort -S 2G --parallel=1 "$SHARED/lines" | sha256sum
}
