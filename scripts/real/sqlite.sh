# A database in memory with an index of random keys, whose rows hardly compress.
# packages: python3
# needs: python3

job() {
    python3 "$REAL/sqlite.py"
}
