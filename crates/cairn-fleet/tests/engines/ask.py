"""Asks stores with another engine: ask.py duckdb|pyspark STORE... QUERIES.

QUERIES is a file with queries between semicolons. Prints the rows of each answer as CSV, and an empty
line behind them. Both engines read the files that the logs of the tables name.
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


engine, *stores, queries = sys.argv[1:]
ask = {"duckdb": with_duckdb, "pyspark": with_pyspark}[engine]
output = csv.writer(sys.stdout, lineterminator="\n")
for store in stores:
    for query in open(queries).read().split(";"):
        output.writerows(ask(store, query))
        print()
