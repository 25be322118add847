//! The tables of a store in a query engine.
//!
//! The engine reads the files that the log names, as plain Parquet: so a plan has nothing that a
//! machine elsewhere does not know, and every engine gets the same rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use cairn_store::{Store, Table};
use datafusion::datasource::MemTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::context::{SQLOptions, SessionConfig, SessionContext};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::SortExpr;
use datafusion::prelude::DataFrame;

use crate::answer::texts;
use crate::buckets;
use crate::cluster::client::{On, Remote};
use crate::error::FleetError;
use crate::functions;

/// A store that can be asked.
pub(crate) struct Session {
    context: SessionContext,
    /// Where questions run, unless they do here.
    remote: Option<Remote>,
    /// The keys of labels, which are columns of the view `samples`.
    labels: BTreeSet<String>,
    /// Whether every row of the stacks counts: they are in one file.
    has_stacks_once: bool,
}

/// A table that can be asked.
pub(crate) struct NamedTable {
    pub(crate) catalog: String,
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) columns: SchemaRef,
}

/// The columns of the views that labels must not have the names of.
const OWN_COLUMNS: [&str; 3] = ["process", "stack_id", "shape_id"];

impl Session {
    /// Opens the tables as they are now.
    pub(crate) async fn open(store: &Store) -> Result<Self, FleetError> {
        Self::of_files(&files_of(store).await?, buckets::environment().build_arc()?).await
    }

    /// Opens the tables as they are now. Large questions run on the cluster if there is one; rows
    /// that the answer needs besides are few, and read here.
    pub(crate) async fn open_on(store: &Store, on: &On) -> Result<Self, FleetError> {
        let files = files_of(store).await?;
        let mut session = Self::of_files(&files, buckets::environment().build_arc()?).await?;
        if let Some(remote) = on.remote(&session.context)? {
            // A cluster must not know in which order rows are: Ballista divides a plan where it
            // moves rows, which mixes them, and joins by merging would miss rows without an error.
            register(&remote.context, &files, IsSorted(false))?;
            add_views(&remote.context, &files, &session.labels_text()).await?;
            session.remote = Some(remote);
        }
        Ok(session)
    }

    /// Opens the tables as they are now, for questions that share limits of memory with others.
    pub(crate) async fn within(store: &Store, runtime: Arc<RuntimeEnv>) -> Result<Self, FleetError> {
        Self::of_files(&files_of(store).await?, runtime).await
    }

    async fn of_files(files: &[TableFiles], runtime: Arc<RuntimeEnv>) -> Result<Self, FleetError> {
        let mut config = SessionConfig::new().with_information_schema(true);
        let options = config.options_mut();
        options.execution.parquet.pushdown_filters = true;
        options.execution.parquet.reorder_filters = true;
        // As on a cluster, so that an answer has the same types.
        options.sql_parser.map_string_types_to_utf8view = false;
        let context = SessionContext::new_with_config_rt(config, runtime);
        register(&context, files, IsSorted(true))?;
        let has_stacks_once = files.iter().any(|(table, urls)| *table == Table::Stack && urls.len() == 1);
        let mut session = Self { context, remote: None, labels: BTreeSet::new(), has_stacks_once };
        session.labels = session.label_keys().await?;
        add_views(&session.context, files, &session.labels_text()).await?;
        Ok(session)
    }

    async fn label_keys(&self) -> Result<BTreeSet<String>, FleetError> {
        // Rows that do not count have the same labels, as those of a process do not change.
        let text = "select distinct unnest(map_keys(labels)) as key from process_rows";
        let mut keys = BTreeSet::new();
        for batch in self.run_here(text).await? {
            keys.extend(texts(&batch, 0)?);
        }
        let sample = Table::Sample.schema();
        keys.retain(|key| sample.column_with_name(key).is_none() && !OWN_COLUMNS.contains(&key.as_str()));
        Ok(keys)
    }

    fn labels_text(&self) -> String {
        let column = |key: &String| {
            format!(", p.labels['{}'] as \"{}\"", key.replace('\'', "''"), key.replace('"', "\"\""))
        };
        self.labels.iter().map(column).collect()
    }

    /// Runs a query that has some rows as the table `wanted`. It runs here, as these rows are here.
    pub(crate) async fn run_with(
        &self,
        wanted: RecordBatch,
        text: &str,
    ) -> Result<Vec<RecordBatch>, FleetError> {
        const NAME: &str = "wanted";
        let table = MemTable::try_new(wanted.schema(), vec![vec![wanted]])?;
        self.context.register_table(NAME, Arc::new(table))?;
        let answer = self.run_here(text).await;
        self.context.deregister_table(NAME)?;
        answer
    }

    /// Runs a query, on the cluster if there is one.
    pub(crate) async fn run(&self, text: &str) -> Result<Vec<RecordBatch>, FleetError> {
        let Some(remote) = &self.remote else { return self.run_here(text).await };
        let frame = remote.context.sql(text).await?;
        if Remote::takes(&frame.clone().into_optimized_plan()?)? {
            remote.wait(frame.collect()).await
        } else {
            self.run_here(text).await
        }
    }

    /// A query that has the frames of stacks to join with a table by its column `stack_id`.
    ///
    /// Where the same stack may be in several files, it is not the view `stack`: the engine would
    /// compare all rows of the store before it joins.
    pub(crate) fn frames_of(&self, table: &str) -> String {
        if self.has_stacks_once {
            return "select stack_id, frames from stack_rows".to_owned();
        }
        format!(
            "select stack_id, last_value(frames order by revision) as frames from stack_rows \
             where stack_id in (select stack_id from {table}) group by stack_id"
        )
    }

    /// Plans a query of a stranger: one that reads tables, and does nothing else.
    pub(crate) async fn plan_of_reader(&self, text: &str) -> Result<DataFrame, FleetError> {
        let reading =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        Ok(self.context.sql_with_options(text, reading).await?)
    }

    /// The catalog, the schema and the names of all tables, each with its columns.
    pub(crate) async fn tables(&self) -> Result<Vec<NamedTable>, FleetError> {
        let mut tables = Vec::new();
        for catalog_name in self.context.catalog_names() {
            let Some(catalog) = self.context.catalog(&catalog_name) else { continue };
            for schema_name in catalog.schema_names().into_iter().filter(|name| name != "information_schema")
            {
                let Some(schema) = catalog.schema(&schema_name) else { continue };
                for name in schema.table_names() {
                    // Only some rows of these count.
                    if name.ends_with("_rows") {
                        continue;
                    }
                    if let Some(table) = schema.table(&name).await? {
                        tables.push(NamedTable {
                            catalog: catalog_name.clone(),
                            schema: schema_name.clone(),
                            name,
                            columns: table.schema(),
                        });
                    }
                }
            }
        }
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tables)
    }

    /// Runs a query in this process.
    pub(crate) async fn run_here(&self, text: &str) -> Result<Vec<RecordBatch>, FleetError> {
        let frame = self.context.sql(text).await?;
        Ok(frame.collect().await?)
    }
}

/// A table, and its files at one moment.
type TableFiles = (Table, Vec<ListingTableUrl>);

async fn files_of(store: &Store) -> Result<Vec<TableFiles>, FleetError> {
    let mut files = Vec::new();
    for table in Table::ALL {
        let of_table = store.files(table).await?;
        let mut urls = of_table
            .iter()
            .map(|file| ListingTableUrl::parse(file.url.as_str()))
            .collect::<Result<Vec<_>, _>>()?;
        if urls.is_empty() {
            // A directory that is never there: a table in memory could not be given to a cluster.
            urls.push(ListingTableUrl::parse(format!("{}{}/_none/", store.address(), table.name()))?);
        }
        files.push((table, urls));
    }
    Ok(files)
}

/// Whether the engine may rely on the order of rows in files.
struct IsSorted(bool);

/// Registers the files of tables under their names.
///
/// Those of a table with a key have the name `TABLE_rows`, as only the last row of a key counts.
fn register(
    context: &SessionContext,
    files: &[TableFiles],
    IsSorted(is_sorted): IsSorted,
) -> Result<(), FleetError> {
    for (table, urls) in files {
        let name = match table.key() {
            [] => table.name().to_owned(),
            _ => format!("{}_rows", table.name()),
        };
        let mut options =
            ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension(".parquet");
        if is_sorted {
            let order = table.order().iter();
            let order: Vec<SortExpr> =
                order.map(|column| datafusion::prelude::col(*column).sort(true, false)).collect();
            options = options.with_file_sort_order(vec![order]);
        }
        let config = ListingTableConfig::new_with_multi_paths(urls.clone())
            .with_listing_options(options)
            .with_schema(table.schema());
        context.register_table(&name, Arc::new(ListingTable::try_new(config)?))?;
    }
    Ok(())
}

/// Adds the views that questions begin with, and the functions.
async fn add_views(context: &SessionContext, files: &[TableFiles], labels: &str) -> Result<(), FleetError> {
    let samples = ("samples".to_owned(), samples_text(labels));
    for (name, query) in last_rows(files).into_iter().chain([samples]) {
        let plan = context.state().create_logical_plan(&query).await?;
        let view = datafusion::datasource::ViewTable::new(plan, Some(query));
        context.register_table(name, Arc::new(view))?;
    }
    functions::register(context);
    Ok(())
}

/// The views of tables with a key. One file has each key once, so that its rows need no comparison;
/// compaction leaves one.
fn last_rows(files: &[TableFiles]) -> Vec<(String, String)> {
    let with_key = files.iter().filter(|(table, _)| !table.key().is_empty());
    with_key.map(|(table, urls)| (table.name().to_owned(), last_rows_of(*table, urls.len()))).collect()
}

fn last_rows_of(table: Table, files: usize) -> String {
    let name = table.name();
    let keys: Vec<String> = table.key().iter().map(|key| quoted(key)).collect();
    let keys = keys.join(", ");
    let schema = table.schema();
    let others = schema
        .fields()
        .iter()
        .filter(|field| !table.key().contains(&field.name().as_str()) && field.name() != "revision")
        .map(|field| quoted(field.name()));
    if files == 1 {
        let others: Vec<String> = others.collect();
        return format!("select {keys}, {} from {name}_rows", others.join(", "));
    }
    let others: Vec<String> =
        others.map(|other| format!("last_value({other} order by revision) as {other}")).collect();
    format!("select {keys}, {} from {name}_rows group by {keys}", others.join(", "))
}

/// A column's name as SQL has it: some of them are words of the language.
fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

/// The view that questions begin with: samples with the labels of their process.
fn samples_text(labels: &str) -> String {
    if labels.is_empty() {
        return "select * from sample".to_owned();
    }
    format!("select s.*{labels} from sample s join process p on s.process = p.process")
}
