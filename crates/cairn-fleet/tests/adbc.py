"""Asks a store by ADBC: `adbc.py grpc://HOST:PORT TOKEN`."""

import sys

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow

url, token = sys.argv[1:]


def connect(token):
    return flight_sql.connect(
        url, db_kwargs={"adbc.flight.sql.authorization_header": f"Bearer {token}"}, autocommit=True
    )


def is_refused(ask):
    try:
        ask()
    except flight_sql.Error:
        return True
    return False


with connect(token) as store, store.cursor() as cursor:
    cursor.execute("select sum(live_bytes) as l from samples")
    table = cursor.fetch_arrow_table()
    assert table.schema.field("l").type == pyarrow.int64(), table.schema
    print(table["l"][0].as_py())
    cursor.execute("select count(*) as n from flame('true', 'live_bytes')")
    print(cursor.fetchone()[0])
    names = store.adbc_get_objects(depth="tables").read_all().to_pylist()
    assert "samples" in str(names), names

    refused = []
    for name, query in [
        ("create", "create external table t stored as csv location '/etc/passwd'"),
        ("copy", "copy samples to '/tmp/stolen.csv'"),
        ("insert", "insert into sample select * from sample"),
    ]:
        if is_refused(lambda: cursor.execute(query)):
            refused.append(name)


def ask_with_another_token():
    with connect("another-token-of-many-characters") as store, store.cursor() as cursor:
        cursor.execute("select 1")


if is_refused(ask_with_another_token):
    refused.append("token")
print("refused " + ", ".join(refused))
