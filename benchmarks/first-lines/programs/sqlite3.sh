# The sqlite3 shell: tables, indexes, a join, JSON, a window, a sort that does not fit into its cache.
build() {
  packages tcl
  debian_source sqlite3
  if [ ! -x source/sqlite3 ]; then
    (cd source && ./configure --disable-tcl --disable-readline --disable-shared CFLAGS='-g -O2' >&2 && make -j "$jobs" sqlite3 >&2)
  fi
  cat > work.sql <<'SQL'
CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE purchase(id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customer, amount REAL, note TEXT);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
  INSERT INTO customer SELECT i, 'name-' || i, 'city-' || (i % 97) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
  INSERT INTO purchase SELECT i, 1 + i * 7919 % 5000, i % 1000 / 3.0, hex(i) || ' a note of some length' FROM n;
COMMIT;
CREATE INDEX purchase_by_customer ON purchase(customer, amount);
CREATE VIEW spent AS SELECT c.city, sum(p.amount) AS total FROM customer c JOIN purchase p ON p.customer = c.id GROUP BY c.city;
SELECT * FROM spent ORDER BY total DESC LIMIT 5;
SELECT city, group_concat(name) FROM customer GROUP BY city LIMIT 3;
SELECT count(*) FROM (SELECT id, rank() OVER (PARTITION BY customer ORDER BY amount) AS r FROM purchase) WHERE r = 1;
SELECT json_group_object(name, json_object('city', city)) IS NOT NULL FROM customer;
SELECT count(DISTINCT note) FROM purchase;
SELECT note FROM purchase ORDER BY note DESC LIMIT 3;
UPDATE purchase SET amount = amount * 2 WHERE customer % 3 = 0;
DELETE FROM purchase WHERE id % 5 = 0;
VACUUM;
.mode table
SELECT * FROM customer LIMIT 200;
SQL
}

run() {
  "$@" source/sqlite3 :memory: < work.sql > out.txt
}
