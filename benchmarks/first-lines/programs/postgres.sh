# postgres in one process (--single): load, index, hash join, sort, aggregates, PL/pgSQL left out.
build() {
  packages bison flex zlib1g-dev perl
  debian_source postgresql-15
  if [ ! -x root/bin/postgres ]; then
    (cd source && ./configure --prefix="$PWD/../root" --without-readline --without-icu CFLAGS='-g -O2' >&2 &&
      make -j "$jobs" -C src/backend generated-headers >&2 && make -j "$jobs" -C src all >&2 && make -C src install >&2)
  fi
  if [ ! -d data ]; then
    rm -rf data.new
    as_user -d data.new root/bin/initdb -D data.new -N -E UTF8 --locale=C -A trust > initdb.log
    mv data.new data
  fi
  # One statement a line: so the single-user mode reads them.
  cat > work.sql <<'SQL'
DROP TABLE IF EXISTS purchase, customer
CREATE TABLE customer(id int PRIMARY KEY, name text, city text)
CREATE TABLE purchase(id int PRIMARY KEY, customer int REFERENCES customer, amount numeric, note jsonb)
INSERT INTO customer SELECT i, 'name-' || i, 'city-' || i % 97 FROM generate_series(1, 5000) i
INSERT INTO purchase SELECT i, 1 + i * 79 % 5000, i % 1000 / 3.0, jsonb_build_object('n', i, 't', 'text-' || i) FROM generate_series(1, 40000) i
CREATE INDEX ON purchase(customer, amount)
ANALYZE
SELECT c.city, sum(p.amount) FROM customer c JOIN purchase p ON p.customer = c.id GROUP BY c.city ORDER BY 2 DESC LIMIT 5
SELECT array_agg(name ORDER BY name DESC) IS NULL FROM customer
SELECT count(*) FROM (SELECT rank() OVER (PARTITION BY customer ORDER BY amount) AS r FROM purchase) s WHERE r = 1
SELECT city, string_agg(name, ',') IS NULL FROM customer GROUP BY city LIMIT 3
SELECT count(DISTINCT note->>'t') FROM purchase
SELECT * FROM purchase ORDER BY note->>'t' DESC LIMIT 3
SELECT regexp_replace(name, '([0-9]+)', '<\1>') FROM customer LIMIT 100
WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 5000) SELECT count(*) FROM n
UPDATE purchase SET amount = amount * 2 WHERE customer % 3 = 0
DELETE FROM purchase WHERE id % 5 = 0
SQL
}

# Runs a command as a user without rights, because postgres refuses root; -d NAME gives it a directory.
as_user() {
  if [ "$1" = -d ]; then mkdir -p "$2"; [ "$(id -u)" != 0 ] || chown nobody "$2"; shift 2; fi
  if [ "$(id -u)" = 0 ]; then setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; else "$@"; fi
}

run() {
  [ "$(id -u)" != 0 ] || chown nobody recordings
  as_user "$@" root/bin/postgres --single -D data -c fsync=off -c jit=off postgres < work.sql > out.txt
}
