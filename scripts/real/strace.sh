# strace -f follows forks of a program whose memory is managed.
# packages: strace python3
# needs: strace /usr/bin/python3

job() {
    strace -f -qq -e trace=process -o trace /usr/bin/python3 "$REAL/forks.py"
    # Every child was seen to its end.
    grep -c 'exit_group(0)' trace
}
