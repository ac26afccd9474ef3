# xz with its largest dictionary.
# packages: xz-utils python3
# needs: xz python3

prepare() {
    python3 - > text <<'END'
import random
rng = random.Random(3)
words = [f"{rng.getrandbits(40):x}" for _ in range(200_000)]
for i in range(1_500_000):
    print(words[int(rng.paretovariate(0.7)) % len(words)], end=" " if i % 12 else "\n")
END
}

job() {
    xz -9 -T1 -c "$SHARED/text" | sha256sum
}
