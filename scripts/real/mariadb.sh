# MariaDB: sysbench's transactions beside tables that are filled, changed, joined and sorted.
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
    # Transactions of several clients; which of them come first is not ours to say.
    local bench=(sysbench --db-driver=mysql --mysql-socket="$PWD/socket" --mysql-user=root
        --tables=2 --table-size=10000 --rand-seed=7 oltp_read_write)
    "${bench[@]}" prepare >/dev/null
    "${bench[@]}" --threads=3 --events=600 --time=0 run >/dev/null
    "${sql[@]}" sbtest -e "
        select count(*), count(distinct id) from sbtest1;
        create table t (id int primary key, a char(32), b varchar(700), key (a))
            select seq id, md5(seq) a, repeat(concat('text ', seq % 1000), 60) b from seq_1_to_100000;
        update t set b = concat(b, a) where id % 3 = 0;
        delete from t where id % 7 = 5;
        checksum table t;
        set tmp_table_size = 100000000, max_heap_table_size = 100000000,
            sort_buffer_size = 60000000, join_buffer_size = 20000000;
        select md5(group_concat(s)) from (select sum(x.id * length(y.b)) s from t x
            join t y on x.id = y.id + 1 group by x.id % 100 order by 1) u;
        select count(*), sum(crc32(b)) from (select b from t order by b limit 60000) u"
    mariadb-admin --no-defaults -u root -S "$PWD/socket" shutdown
    wait $server
}
