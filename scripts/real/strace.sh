# strace -f follows forks of a program whose memory is managed.
# packages: strace python3
# needs: strace /usr/bin/python3

job() {
    # A file for each process: lines of one are not interrupted by another's.
    strace -ff -qq -e trace=process -o trace /usr/bin/python3 "$REAL/forks.py"
    # Every child was seen to its end.
    grep -l 'exit_group(0)' trace.* | wc -l
}
