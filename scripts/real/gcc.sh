# gcc on one large file.
# packages: gcc libc6-dev python3
# needs: gcc python3

prepare() {
    python3 - > large.c <<'END'
N = 2500
for i in range(N):
    print(f"int f{i}(int a, int b) {{ int s = {i}; for (int i = 0; i < a; i++) {{ s += i * b;"
          f" if (s % {i % 97 + 5} == 3) s ^= b << {i % 13}; switch (s & 7) {{ case 0: s += a; break;"
          f" case 3: s -= b; break; case 5: s *= 3; }} }} return s; }}")
print("int main(void) { int s = 0;")
for i in range(N):
    print(f"s += f{i}({i % 9}, {i % 5});")
print("return s; }")
END
}

job() {
    gcc -O2 -S -o - "$SHARED/large.c" | sha256sum
}
