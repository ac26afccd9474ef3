# PostgreSQL as its own user: pgbench, and sorts and hashes that fill work_mem.
# packages: postgresql
# needs: /usr/lib/postgresql/15/bin/postgres /usr/lib/postgresql/15/bin/pgbench

BIN=/usr/lib/postgresql/15/bin

# The server refuses to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        chown -R postgres .
        setpriv --reuid postgres --regid postgres --init-groups "$@"
    else
        "$@"
    fi
}

prepare() {
    mkdir data
    as_postgres $BIN/initdb -D data --no-sync -A trust -U postgres --locale C -E UTF8
}

sql() {
    as_postgres $BIN/psql -h "$PWD" -U postgres -X -q -A -t -v ON_ERROR_STOP=1 "$@"
}

job() {
    # What is shared is not managed: the data are in the backends' own memory here.
    cat >conf <<-END
	listen_addresses = ''
	unix_socket_directories = '$PWD'
	shared_buffers = 2MB
	work_mem = 256MB
	fsync = off
	autovacuum = off
	max_connections = 10
	max_parallel_workers_per_gather = 0
	max_logical_replication_workers = 0
	END
    cp -R "$SHARED/data" data
    chmod 700 data
    cat conf >>data/postgresql.conf
    as_postgres $BIN/pg_ctl -D data -w -t 60 -l log start >/dev/null
    as_postgres $BIN/pgbench -h "$PWD" -U postgres -q -i -s 2 postgres 2>/dev/null >/dev/null
    as_postgres $BIN/pgbench -h "$PWD" -U postgres -n -c 3 -t 300 --random-seed 5 postgres >/dev/null
    sql -d postgres -c "
        select count(*), sum(delta) = (select sum(abalance) from pgbench_accounts),
            sum(delta) = (select sum(tbalance) from pgbench_tellers) from pgbench_history"
    local sorts="
        with t as (select i, md5(i::text) || repeat('x', i % 100) m
            from generate_series(1, 300000) i order by m)
        select md5(string_agg(m, ',')) from (select m from t limit 200000) u;
        select count(*), sum(n), max(k) from (select md5((i % 150000)::text) k, count(*) n
            from generate_series(1, 600000) i group by k) g;
        set jit_above_cost = 0;
        select sum(i * 3 % 7), count(distinct i % 100000) from generate_series(1, 500000) i"
    # The compiler's library is 6 MiB of relocations: one of the two does without.
    sql -d postgres -c "set jit = off; $sorts" >first &
    local one=$!
    sql -d postgres -c "$sorts"
    wait $one
    cat first
    as_postgres $BIN/pg_ctl -D data -w -m fast stop >/dev/null
}
