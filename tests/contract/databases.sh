#!/bin/sh
# Runs a command beside a MariaDB and a PostgreSQL of its own, and stops them when it has ended:
#
#   tests/contract/databases.sh python -m pytest tests/contract
#
# Both listen on the loopback interface only and live in a temporary folder. The command finds them in
# SPANWISE_TEST_MYSQL and SPANWISE_TEST_POSTGRESQL; the tests make databases there and leave them.
# Debian, Ubuntu: apt-get install mariadb-server postgresql
set -eu

[ $# -gt 0 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }

# Debian keeps the server's programs off the path.
for bin in /usr/lib/postgresql/*/bin; do PATH="$bin:$PATH"; done
PATH="$PATH:/usr/sbin"
for program in mariadb-install-db mariadbd mariadb initdb postgres psql; do
    command -v "$program" >/dev/null || {
        echo "$program is not on the path. Install both servers: apt-get install mariadb-server postgresql" >&2
        exit 1
    }
done

place=$(mktemp -d)
chmod 755 "$place"
mysql_pid='' postgresql_pid=''

stop() {
    for pid in $mysql_pid $postgresql_pid; do kill "$pid" 2>/dev/null || continue; wait "$pid" 2>/dev/null || :; done
    rm -rf "$place"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

wait_for() {
    for _ in $(seq 100); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    echo "The database did not come up in 10 s:" >&2
    tail -n 20 "$place"/*.log >&2
    exit 1
}

# PostgreSQL refuses to run as root.
as_nobody() {
    if [ "$(id -u)" = 0 ]; then setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; else "$@"; fi
}

mkdir "$place/postgresql"
[ "$(id -u)" != 0 ] || chown nobody:nogroup "$place/postgresql"

mysql_port=$(free_port)
mariadb-install-db --no-defaults --user="$(id -un)" --auth-root-authentication-method=normal \
    --datadir="$place/mysql" >"$place/mysql.log" 2>&1
mariadbd --no-defaults --user="$(id -un)" --datadir="$place/mysql" --socket="$place/mysql.socket" \
    --skip-name-resolve --bind-address=127.0.0.1 --port="$mysql_port" \
    --character-set-server=utf8mb4 --collation-server=utf8mb4_bin >>"$place/mysql.log" 2>&1 &
mysql_pid=$!

postgresql_port=$(free_port)
cd "$place"
as_nobody env "PATH=$PATH" initdb --pgdata="$place/postgresql/data" --auth=trust --username=spanwise --encoding=UTF8 \
    --locale=C.UTF-8 --no-sync >"$place/postgresql.log" 2>&1
# exec: the pid is then the server's own, and killing it ends the server
(exec >>"$place/postgresql.log" 2>&1
 if [ "$(id -u)" = 0 ]; then set -- setpriv --reuid=nobody --regid=nogroup --clear-groups; else set --; fi
 exec "$@" "$(command -v postgres)" -D "$place/postgresql/data" -k "$place/postgresql" -h 127.0.0.1 -p "$postgresql_port") &
postgresql_pid=$!
cd "$OLDPWD"

sql() { mariadb --no-defaults --socket="$place/mysql.socket" --user=root "$@"; }
wait_for sql --execute='SELECT 1'
sql --execute="CREATE USER spanwise@'%' IDENTIFIED BY 'secret'; GRANT ALL ON *.* TO spanwise@'%' WITH GRANT OPTION;"
# As a server makes them that nobody has told to tell upper case from lower.
sql --execute='CREATE DATABASE capitals CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci'
wait_for psql --host=127.0.0.1 --port="$postgresql_port" --username=spanwise --command='SELECT 1' postgres

export SPANWISE_TEST_MYSQL="mysql://spanwise:secret@127.0.0.1:$mysql_port/spanwise"
export SPANWISE_TEST_MYSQL_CAPITALS="mysql://spanwise:secret@127.0.0.1:$mysql_port/capitals"
export SPANWISE_TEST_POSTGRESQL="postgresql://spanwise:secret@127.0.0.1:$postgresql_port/spanwise"
"$@"
