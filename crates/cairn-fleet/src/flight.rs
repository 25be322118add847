//! Flight SQL: the tables of a store for programs, as ADBC, JDBC and Grafana ask them.
//!
//! It only reads. Statements that would write, that name files, or that change settings are
//! refused before they run. A server has nothing to remember: the handle of a statement is its
//! text, so that no client can fill the memory with statements that it never closes. Each query
//! sees the store as it is when the query begins.
//!
//! Authentication is not done here: the router that this is merged into asks for the token.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::encode::{DictionaryHandling, FlightDataEncoderBuilder};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::server::FlightSqlService;
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest,
    ActionCreatePreparedStatementResult, CommandGetCatalogs, CommandGetDbSchemas, CommandGetSqlInfo,
    CommandGetTableTypes, CommandGetTables, CommandPreparedStatementQuery, CommandStatementQuery,
    ProstMessageExt, SqlInfo, TicketStatementQuery,
};
use arrow_flight::{
    Action, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, Ticket,
};
use cairn_store::{Id, Store};
use clap::Args;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream, execute_stream};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};

use crate::buckets;
use crate::error::FleetError;
use crate::session::Session;

/// The most that queries over Flight SQL may take.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Seconds that a query may take until its client has all rows
    #[arg(long = "query-seconds", value_name = "SECONDS", default_value_t = 120)]
    seconds: u32,

    /// Bytes of memory that all running queries may take
    #[arg(long = "query-memory-bytes", value_name = "BYTES", default_value_t = 2 << 30)]
    memory_bytes: usize,

    /// Bytes that the answer to one query may have
    #[arg(long = "query-answer-bytes", value_name = "BYTES", default_value_t = 1 << 30)]
    answer_bytes: usize,

    /// Queries that run at once; others wait
    #[arg(long = "queries", value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..))]
    queries: u16,
}

/// The most bytes of a request. A query is some kilobytes.
const MOST_REQUEST_BYTES: usize = 1 << 20;

/// Returns the routes of Flight SQL over a store.
pub(crate) fn routes(store: &str, limits: Limits) -> Result<axum::Router, FleetError> {
    let service =
        FlightServiceServer::new(Flight::new(store, limits)?).max_decoding_message_size(MOST_REQUEST_BYTES);
    Ok(axum::Router::new().route_service("/arrow.flight.protocol.FlightService/{*method}", service))
}

#[derive(Clone)]
struct Flight {
    store: Arc<str>,
    limits: Limits,
    runtime: Arc<RuntimeEnv>,
    slots: Arc<Semaphore>,
    server: Arc<SqlInfoData>,
}

type Answer = Response<<Flight as FlightService>::DoGetStream>;

/// A query that was planned.
struct Planned {
    plan: Arc<dyn ExecutionPlan>,
    task: Arc<TaskContext>,
    deadline: Instant,
    slot: OwnedSemaphorePermit,
}

/// A query that runs.
struct Running {
    rows: SendableRecordBatchStream,
    deadline: Instant,
    sent_bytes: usize,
    _slot: OwnedSemaphorePermit,
}

impl Flight {
    fn new(store: &str, limits: Limits) -> Result<Self, FleetError> {
        let mut server = SqlInfoDataBuilder::new();
        server.append(SqlInfo::FlightSqlServerName, "cairn fleet");
        server.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
        server.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
        server.append(SqlInfo::FlightSqlServerReadOnly, true);
        server.append(SqlInfo::FlightSqlServerSql, true);
        server.append(SqlInfo::FlightSqlServerSubstrait, false);
        server.append(SqlInfo::FlightSqlServerTransaction, 0_i32);
        server.append(SqlInfo::FlightSqlServerCancel, false);
        server.append(SqlInfo::SqlDdlCatalog, false);
        server.append(SqlInfo::SqlDdlSchema, false);
        server.append(SqlInfo::SqlDdlTable, false);
        server.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
        let runtime = buckets::environment().with_memory_limit(limits.memory_bytes, 1.0).build_arc()?;
        Ok(Self {
            store: store.into(),
            limits,
            runtime,
            slots: Arc::new(Semaphore::new(limits.queries.into())),
            server: Arc::new(server.build().map_err(|error| FleetError::new(error.to_string()))?),
        })
    }

    /// Opens the store as it is now.
    async fn session(&self) -> Result<Session, Status> {
        let store = Store::open(&self.store).await.map_err(|error| Status::unavailable(error.to_string()))?;
        Session::within(&store, Arc::clone(&self.runtime)).await.map_err(|error| refused(&error))
    }

    /// Plans a query.
    async fn plan(&self, query: &str) -> Result<Planned, Status> {
        let deadline = Instant::now() + Duration::from_secs(self.limits.seconds.into());
        let planned = async {
            let slot = Arc::clone(&self.slots);
            let slot = slot.acquire_owned().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let frame = self.session().await?.plan_of_reader(query).await.map_err(|error| refused(&error))?;
            let task = Arc::new(frame.task_ctx());
            let plan = frame.create_physical_plan().await.map_err(|error| failed(&error))?;
            let plan = yielding(plan).map_err(|error| failed(&error))?;
            Ok(Planned { plan, task, deadline, slot })
        };
        timeout_at(deadline, planned).await.map_err(|_| self.too_late())?
    }

    fn too_late(&self) -> Status {
        Status::deadline_exceeded(format!(
            "the query has taken {} s, the limit; ask for less",
            self.limits.seconds
        ))
    }

    /// Describes where the rows of a query are: its text, and the columns that they must have.
    fn info(&self, planned: &Planned, query: &str, asked: FlightDescriptor) -> Result<FlightInfo, Status> {
        let mut handle = hash_of(&planned.plan.schema())?.bytes().to_vec();
        handle.extend(query.as_bytes());
        let ticket = TicketStatementQuery { statement_handle: handle.into() };
        described(&planned.plan.schema(), ticket.as_any().encode_to_vec(), asked)
    }

    /// Sends the rows of a query as they come.
    fn send(&self, planned: Planned) -> Result<Answer, Status> {
        let Planned { plan, task, deadline, slot } = planned;
        let rows = execute_stream(plan, task).map_err(|error| failed(&error))?;
        let schema = rows.schema();
        let flight = self.clone();
        let running = Running { rows, deadline, sent_bytes: 0, _slot: slot };
        // Nothing follows an error.
        let rows = futures::stream::unfold(Some(running), move |running| {
            let flight = flight.clone();
            async move {
                let mut running = running?;
                let batch = flight.next(&mut running).await?;
                let next = batch.is_ok().then_some(running);
                Some((batch, next))
            }
        });
        Ok(sending(schema, rows))
    }

    /// Waits for the next rows, within the limits.
    async fn next(&self, running: &mut Running) -> Option<Result<RecordBatch, Status>> {
        let batch = match timeout_at(running.deadline, running.rows.next()).await {
            Err(_) => return Some(Err(self.too_late())),
            Ok(None) => return None,
            Ok(Some(Err(error))) => return Some(Err(failed(&error))),
            Ok(Some(Ok(batch))) => batch,
        };
        running.sent_bytes = running.sent_bytes.saturating_add(batch.get_array_memory_size());
        if running.sent_bytes > self.limits.answer_bytes {
            let limit = self.limits.answer_bytes;
            let why = format!("the answer has more than {limit} bytes, the limit; ask for less");
            return Some(Err(Status::resource_exhausted(why)));
        }
        Some(Ok(batch))
    }
}

/// Makes operators that multiply rows give way to others.
///
/// A product of two tables makes millions of batches of one that it has read, without a pause in
/// which its limit of time could end it, and would hold a thread of the server for hours.
fn yielding(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    let yielding = plan.transform_up(|node| {
        let multiplies = node.children().len() > 1 || node.name() == "UnnestExec";
        Ok(if multiplies {
            Transformed::yes(Arc::new(CooperativeExec::new(node)) as Arc<dyn ExecutionPlan>)
        } else {
            Transformed::no(node)
        })
    })?;
    Ok(yielding.data)
}

/// Encodes rows as they come.
fn sending(
    schema: SchemaRef,
    rows: impl Stream<Item = Result<RecordBatch, Status>> + Send + 'static,
) -> Answer {
    let rows = rows.map_err(|status| FlightError::Tonic(Box::new(status)));
    let data = FlightDataEncoderBuilder::new()
        .with_schema(schema)
        // Columns arrive as they were announced.
        .with_dictionary_handling(DictionaryHandling::Resend)
        .build(rows)
        .map_err(Status::from);
    let data: Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>> = Box::pin(data);
    Response::new(data)
}

/// Sends one batch that is in memory.
fn sending_one(batch: Result<RecordBatch, FlightError>) -> Result<Answer, Status> {
    let batch = batch.map_err(Status::from)?;
    Ok(sending(batch.schema(), futures::stream::once(async { Ok(batch) })))
}

fn described(schema: &SchemaRef, ticket: Vec<u8>, asked: FlightDescriptor) -> Result<FlightInfo, Status> {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket));
    let info =
        FlightInfo::new().try_with_schema(schema).map_err(|error| Status::internal(error.to_string()))?;
    Ok(info.with_endpoint(endpoint).with_descriptor(asked))
}

/// Describes an answer whose request is its own ticket.
fn described_by(
    command: &impl ProstMessageExt,
    schema: &SchemaRef,
    request: Request<FlightDescriptor>,
) -> Result<Response<FlightInfo>, Status> {
    described(schema, command.as_any().encode_to_vec(), request.into_inner()).map(Response::new)
}

fn message_of(schema: &SchemaRef) -> Result<IpcMessage, Status> {
    SchemaAsIpc::new(schema, &IpcWriteOptions::default())
        .try_into()
        .map_err(|error: arrow::error::ArrowError| Status::internal(error.to_string()))
}

fn hash_of(schema: &SchemaRef) -> Result<Id, Status> {
    Ok(Id::of_content([&message_of(schema)?.0[..]]))
}

/// A query that cannot be planned.
fn refused(error: &FleetError) -> Status {
    Status::invalid_argument(error.to_string())
}

/// A query that was planned and does not come to its end.
fn failed(error: &DataFusionError) -> Status {
    let text = error.strip_backtrace();
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => Status::resource_exhausted(text),
        DataFusionError::Plan(_) | DataFusionError::SchemaError(..) => Status::invalid_argument(text),
        _ => Status::internal(text),
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, Status> {
    std::str::from_utf8(bytes).map_err(|error| Status::invalid_argument(format!("the statement: {error}")))
}

#[tonic::async_trait]
impl FlightSqlService for Flight {
    type FlightService = Self;

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let planned = self.plan(&query.query).await?;
        self.info(&planned, &query.query, request.into_inner()).map(Response::new)
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let query = text_of(&query.prepared_statement_handle)?;
        let planned = self.plan(query).await?;
        self.info(&planned, query, request.into_inner()).map(Response::new)
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        _: Request<Ticket>,
    ) -> Result<Answer, Status> {
        let Some((announced, query)) = ticket.statement_handle.split_first_chunk::<16>() else {
            return Err(Status::invalid_argument("this ticket is not one of this server"));
        };
        let planned = self.plan(text_of(query)?).await?;
        if hash_of(&planned.plan.schema())? != Id::new(*announced) {
            return Err(Status::aborted(
                "the columns of the answer have changed since they were announced, as a label was added; ask again",
            ));
        }
        self.send(planned)
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        _: Request<Ticket>,
    ) -> Result<Answer, Status> {
        self.send(self.plan(text_of(&query.prepared_statement_handle)?).await?)
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        _: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let planned = self.plan(&query.query).await?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: query.query.into_bytes().into(),
            dataset_schema: message_of(&planned.plan.schema())?.0,
            parameter_schema: message_of(&Arc::new(arrow::datatypes::Schema::empty()))?.0,
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        _: ActionClosePreparedStatementRequest,
        _: Request<Action>,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn get_flight_info_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        described_by(&query, &query.into_builder().schema(), request)
    }

    async fn do_get_catalogs(&self, query: CommandGetCatalogs, _: Request<Ticket>) -> Result<Answer, Status> {
        let mut builder = query.into_builder();
        let tables = self.session().await?.tables().await.map_err(|error| refused(&error))?;
        let names: BTreeSet<_> = tables.into_iter().map(|table| table.catalog).collect();
        names.into_iter().for_each(|catalog| builder.append(catalog));
        sending_one(builder.build())
    }

    async fn get_flight_info_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        described_by(&query.clone(), &query.into_builder().schema(), request)
    }

    async fn do_get_schemas(&self, query: CommandGetDbSchemas, _: Request<Ticket>) -> Result<Answer, Status> {
        let mut builder = query.into_builder();
        let tables = self.session().await?.tables().await.map_err(|error| refused(&error))?;
        let names: BTreeSet<_> = tables.into_iter().map(|table| (table.catalog, table.schema)).collect();
        names.iter().for_each(|(catalog, schema)| builder.append(catalog, schema));
        sending_one(builder.build())
    }

    async fn get_flight_info_tables(
        &self,
        query: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        described_by(&query.clone(), &query.into_builder().schema(), request)
    }

    async fn do_get_tables(&self, query: CommandGetTables, _: Request<Ticket>) -> Result<Answer, Status> {
        let mut builder = query.into_builder();
        for table in self.session().await?.tables().await.map_err(|error| refused(&error))? {
            builder
                .append(table.catalog, table.schema, table.name, "TABLE", &table.columns)
                .map_err(Status::from)?;
        }
        sending_one(builder.build())
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        described_by(&query, &query.into_builder().schema(), request)
    }

    async fn do_get_table_types(
        &self,
        query: CommandGetTableTypes,
        _: Request<Ticket>,
    ) -> Result<Answer, Status> {
        let mut builder = query.into_builder();
        builder.append("TABLE");
        sending_one(builder.build())
    }

    async fn get_flight_info_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        described_by(&query.clone(), &query.into_builder(&self.server).schema(), request)
    }

    async fn do_get_sql_info(&self, query: CommandGetSqlInfo, _: Request<Ticket>) -> Result<Answer, Status> {
        sending_one(query.into_builder(&self.server).build())
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
