# MariaDB: sysbench's rows and transactions, checksums of its tables, and a consistent join.
# packages: mariadb-server sysbench
# needs: mariadbd mariadb-install-db sysbench

user() {
    [ "$(id -u)" != 0 ] || echo --user=root
}

prepare() {
    mariadb-install-db --no-defaults $(user) --datadir="$PWD/data" --skip-test-db \
        --auth-root-authentication-method=normal
}

job() {
    cp -R "$SHARED/data" data
    mariadbd --no-defaults $(user) --datadir="$PWD/data" --socket="$PWD/socket" --skip-networking \
        --innodb-buffer-pool-size=128M --innodb-flush-log-at-trx-commit=0 --pid-file="$PWD/pid" \
        2>log &
    local server=$!
    local sql=(mariadb --no-defaults -u root -S "$PWD/socket" -N -B)
    until "${sql[@]}" -e 'select 1' >/dev/null 2>&1; do
        kill -0 $server
        sleep 0.05
    done
    "${sql[@]}" -e 'create database sbtest'
    local bench=(sysbench --db-driver=mysql --mysql-socket="$PWD/socket" --mysql-user=root
        --tables=2 --table-size=60000 --rand-seed=7)
    "${bench[@]}" oltp_read_write prepare >/dev/null
    "${bench[@]}" oltp_read_write --threads=1 --events=1000 --time=0 run >/dev/null
    "${bench[@]}" oltp_read_only --threads=3 --events=1500 --time=0 run >/dev/null
    "${sql[@]}" sbtest -e 'checksum table sbtest1, sbtest2;' -e "
        set tmp_table_size = 100000000, max_heap_table_size = 100000000,
            sort_buffer_size = 50000000, join_buffer_size = 20000000;
        select md5(group_concat(s)) from (select sum(a.id * b.k) s from sbtest1 a
            join sbtest2 b on a.k = b.k group by a.k % 100 order by 1) t;
        select count(*), sum(crc32(c)) from (select distinct c from sbtest1
            union all select c from sbtest2 order by c) u"
    mariadb-admin --no-defaults -u root -S "$PWD/socket" shutdown
    wait $server
}
