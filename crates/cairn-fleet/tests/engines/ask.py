"""Asks the samples of a store with another engine: ask.py duckdb|pyspark STORE QUERY-FILE.

Prints the rows as CSV. Both engines read the files that the tables' logs name.
"""

import csv
import sys

TABLES = ["sample", "process", "stack", "shape", "frame", "module", "block"]


def files(store, table):
    from deltalake import DeltaTable

    return DeltaTable(f"{store}/{table}").file_uris()


def with_duckdb(store, query):
    import duckdb

    engine = duckdb.connect()
    for table in TABLES:
        names = ", ".join(f"'{name}'" for name in files(store, table))
        engine.execute(f"create view {table} as select * from read_parquet([{names}])")
    return engine.execute(query).fetchall()


def with_pyspark(store, query):
    from pyspark.sql import SparkSession

    engine = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    for table in TABLES:
        engine.read.parquet(*files(store, table)).createOrReplaceTempView(table)
    return [tuple(row) for row in engine.sql(query).collect()]


engine, store, query = sys.argv[1:]
rows = {"duckdb": with_duckdb, "pyspark": with_pyspark}[engine](store, open(query).read())
csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
