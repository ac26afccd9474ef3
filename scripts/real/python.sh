# Python's multiprocessing: workers that are forked (and share their parent's memory) or started.
# packages: python3
# needs: /usr/bin/python3
# variants: fork spawn forkserver

job() {
    /usr/bin/python3 "$REAL/python.py" "$VARIANT"
}
