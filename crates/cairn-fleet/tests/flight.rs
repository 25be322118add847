//! Flight SQL as clients have it: queries and their limits, refusals, the token.

#![allow(clippy::print_stdout, reason = "a test prints what it could not check")]

mod members;
mod program;

use std::path::Path;
use std::process::Command;

use arrow::array::{AsArray as _, RecordBatch};
use arrow::datatypes::{Int64Type, Schema};
use arrow_flight::FlightInfo;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{CommandGetDbSchemas, CommandGetTables, SqlInfo};
use futures::TryStreamExt as _;
use members::{Running, done, generate};
use tonic::transport::{Channel, Endpoint};

const TOKEN: &str = "a token of more than enough characters";

type Client = FlightSqlServiceClient<Channel>;

/// A store that is served.
struct Served {
    directory: tempfile::TempDir,
    _server: Running,
    url: String,
}

impl Served {
    fn start(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let token = TOKEN.replace(' ', "-");
        std::fs::write(directory.path().join("token"), &token).unwrap();
        generate(directory.path(), 24);
        let arguments = ["serve", "store", "--listen", "127.0.0.1:0", "--token-file", "token"];
        let server = Running::start(directory.path(), &[&arguments[..], options].concat());
        let url = server.after("listening on ");
        Self { directory, _server: server, url }
    }

    async fn client(&self, token: &str) -> Client {
        let channel = Endpoint::from_shared(self.url.clone()).unwrap().connect().await.unwrap();
        let mut client = FlightSqlServiceClient::new(channel);
        client.set_token(token.replace(' ', "-"));
        client
    }

    /// Asks the command the same query.
    fn here(&self, query: &str) -> String {
        done(self.directory.path(), &["sql", "store", query, "--format", "csv"])
    }
}

async fn fetched(client: &mut Client, info: FlightInfo) -> Result<Vec<RecordBatch>, String> {
    let announced = Schema::try_from(info.clone()).map_err(|error| error.to_string())?;
    let mut batches = Vec::new();
    for endpoint in info.endpoint {
        let stream = client.do_get(endpoint.ticket.unwrap()).await.map_err(|error| error.to_string())?;
        batches.extend(stream.try_collect::<Vec<_>>().await.map_err(|error| error.to_string())?);
    }
    for batch in &batches {
        assert_eq!(*batch.schema(), announced);
    }
    Ok(batches)
}

async fn asked(client: &mut Client, query: &str) -> Result<Vec<RecordBatch>, String> {
    let info = client.execute(query.to_owned(), None).await.map_err(|error| error.to_string())?;
    fetched(client, info).await
}

fn csv(batches: &[RecordBatch]) -> String {
    let mut writer = arrow::csv::Writer::new(Vec::new());
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    String::from_utf8(writer.into_inner()).unwrap()
}

fn rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

#[tokio::test]
async fn answers_are_those_of_the_command() {
    let served = Served::start(&[]);
    let mut client = served.client(TOKEN).await;
    for query in [
        "select count(*) as n, sum(live_bytes) as l from samples",
        "select service, region, sum(alloc_bytes) as a from samples group by 1, 2 order by 1",
        "select level, value, self, label from flame('service = ''service-01''', 'live_bytes')",
        "select function, value from inclusive('true', 'alloc_bytes') limit 5",
        "select 1 as one",
        "explain select * from samples",
    ] {
        let answer = asked(&mut client, query).await.unwrap();
        if !query.starts_with("explain") {
            assert_eq!(csv(&answer), served.here(query), "{query}");
        }
        assert!(rows(&answer) > 0, "{query}");
    }
    let mut prepared = client.prepare("select count(*) as n from process".to_owned(), None).await.unwrap();
    assert_eq!(prepared.dataset_schema().unwrap().field(0).name(), "n");
    let info = prepared.execute().await.unwrap();
    let answer = fetched(&mut client, info).await.unwrap();
    assert_eq!(answer[0].column(0).as_primitive::<Int64Type>().value(0), 24);
    prepared.close().await.unwrap();

    // A commit is seen by the next query.
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/exchange/go-heap.pb.gz");
    done(served.directory.path(), &["add", "store", &fixture.display().to_string()]);
    let answer = asked(&mut client, "select count(*) as n from process").await.unwrap();
    assert_eq!(answer[0].column(0).as_primitive::<Int64Type>().value(0), 25);
}

#[tokio::test]
async fn tables_are_listed_with_their_columns() {
    let served = Served::start(&[]);
    let mut client = served.client(TOKEN).await;
    let info = client
        .get_tables(CommandGetTables { include_schema: true, ..CommandGetTables::default() })
        .await
        .unwrap();
    let tables = fetched(&mut client, info).await.unwrap();
    let names: Vec<_> = tables[0].column(2).as_string::<i32>().iter().flatten().collect();
    assert_eq!(names, ["block", "frame", "module", "process", "sample", "samples", "shape", "stack"]);
    let info = client.get_db_schemas(CommandGetDbSchemas::default()).await.unwrap();
    assert_eq!(rows(&fetched(&mut client, info).await.unwrap()), 1);
    let info = client.get_catalogs().await.unwrap();
    assert_eq!(rows(&fetched(&mut client, info).await.unwrap()), 1);
    let info = client.get_table_types().await.unwrap();
    assert_eq!(rows(&fetched(&mut client, info).await.unwrap()), 1);
    let asked = vec![SqlInfo::FlightSqlServerName, SqlInfo::FlightSqlServerReadOnly];
    let info = client.get_sql_info(asked).await.unwrap();
    assert_eq!(rows(&fetched(&mut client, info).await.unwrap()), 2);
}

#[tokio::test]
async fn only_reading_is_allowed() {
    let served = Served::start(&[]);
    let mut client = served.client(TOKEN).await;
    let before = served.here("select count(*) as n from sample");
    for query in [
        "create table t as select 1 as a",
        "create view v as select 1 as a",
        "create external table t stored as csv location '/etc/passwd'",
        "create external table t stored as parquet location 'file:///'",
        "explain analyze create external table t stored as csv location '/etc/passwd'",
        "copy samples to '/tmp/stolen.csv'",
        "copy (select 1) to '/tmp/stolen.parquet' stored as parquet",
        "insert into sample select * from sample",
        "insert into sample_rows select * from sample",
        "delete from sample",
        "update sample set live_bytes = 0",
        "drop table samples",
        "drop view samples",
        "set datafusion.execution.target_partitions = 1",
        "prepare p as select 1",
        "begin",
        "select 1; drop table samples",
        "select * from '/etc/passwd'",
        "select * from 'file:///etc/passwd'",
        "select * from read_csv('/etc/passwd')",
        "select * from flame('true) ; drop table samples --', 'live_bytes')",
        "select nothing from nowhere",
        "",
    ] {
        let refused = client.execute(query.to_owned(), None).await.expect_err(query).to_string();
        assert!(!refused.contains("root:"), "{query}: {refused}");
        // A ticket that a client makes by itself is not trusted either.
        assert!(client.prepare(query.to_owned(), None).await.is_err(), "{query}");
    }
    assert!(client.execute_update("drop table samples".to_owned(), None).await.is_err());
    assert_eq!(served.here("select count(*) as n from sample"), before);
    assert_eq!(rows(&asked(&mut client, "select 1 as one").await.unwrap()), 1);
}

#[tokio::test]
async fn limits_end_queries_and_spare_the_server() {
    let served = Served::start(&[
        "--query-seconds",
        "4",
        "--query-answer-bytes",
        "1000000",
        "--query-memory-bytes",
        "8000000",
    ]);
    let mut client = served.client(TOKEN).await;
    for (query, why) in [
        ("select sum(a.value * b.value) from range(0, 100000) a, range(0, 100000) b", "4 s, the limit"),
        ("select value from range(0, 10000000)", "1000000 bytes, the limit"),
        ("select sum(a.value * b.value) from range(0, 2000000) a, range(0, 2000000) b", "failed to allocate"),
    ] {
        let error = asked(&mut client, query).await.map(|batches| rows(&batches)).expect_err(query);
        assert!(error.to_lowercase().contains(why), "{query}: {error}");
        assert_eq!(rows(&asked(&mut client, "select 1 as one").await.unwrap()), 1, "after {query}");
    }
}

#[tokio::test]
async fn requests_without_the_token_are_refused() {
    let served = Served::start(&[]);
    for token in ["", "another token of many characters"] {
        let mut client = served.client(token).await;
        let error = client.execute("select 1".to_owned(), None).await.unwrap_err().to_string();
        assert!(error.to_lowercase().contains("unauthenticated") || error.contains("401"), "{error}");
        assert!(client.get_catalogs().await.is_err());
    }
}

/// ADBC is what people use from Python.
#[test]
fn adbc_of_python_asks_and_is_refused() {
    let Some(python) = program::python() else {
        println!(
            "not run: CAIRN_FLEET_PYTHON names no python with adbc-driver-flightsql; `cargo xtask fleet` does"
        );
        return;
    };
    let served = Served::start(&[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adbc.py");
    let output = Command::new(python)
        .arg(script)
        .arg(served.url.replacen("http://", "grpc://", 1))
        .arg(TOKEN.replace(' ', "-"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = printed.lines();
    assert_eq!(
        lines.next(),
        Some(served.here("select sum(live_bytes) as l from samples").trim_start_matches("l\n").trim())
    );
    let here = served.here("select count(*) as n from flame('true', 'live_bytes')");
    assert_eq!(lines.next(), Some(here.trim_start_matches("n\n").trim()));
    assert_eq!(lines.next(), Some("refused create, copy, insert, token"));
}
