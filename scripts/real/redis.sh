# Redis: values are replaced while BGSAVE runs; every value is read, and the dump has the old ones.
# packages: redis-server redis-tools python3
# needs: redis-server redis-cli /usr/bin/python3

start() { # socket, directory, more
    local socket=$1 dir=$2
    redis-server --port 0 --unixsocket "$PWD/$socket" --dir "$dir" --save '' --daemonize yes \
        --logfile "$PWD/log" --enable-debug-command yes "${@:3}"
    until redis-cli -s "$socket" ping 2>&1 | grep -q PONG; do sleep 0.02; done
}

job() {
    mkdir dump
    start one dump
    /usr/bin/python3 "$REAL/redis.py" one
    redis-cli -s one shutdown nosave
    start two dump
    echo "the dump holds $(redis-cli -s two debug digest)"
    redis-cli -s two shutdown nosave
}
