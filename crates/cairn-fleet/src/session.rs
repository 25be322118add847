//! The tables of a store in a query engine.
//!
//! The engine reads the files that the log names, as plain Parquet: so a plan has nothing that a
//! machine elsewhere does not know, and every engine gets the same rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use cairn_store::{Store, Table};
use datafusion::datasource::MemTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::context::{SessionConfig, SessionContext};
use datafusion::logical_expr::SortExpr;

use crate::answer::texts;
use crate::buckets;
use crate::error::FleetError;
use crate::functions;

/// A store that can be asked.
pub(crate) struct Session {
    context: SessionContext,
    /// The keys of labels, which are columns of the view `samples`.
    labels: BTreeSet<String>,
}

/// The columns of the views that labels must not have the names of.
const OWN_COLUMNS: [&str; 3] = ["process", "stack_id", "shape_id"];

impl Session {
    /// Opens the tables as they are now.
    pub(crate) async fn open(store: &Store) -> Result<Self, FleetError> {
        let mut config = SessionConfig::new().with_information_schema(true);
        config.options_mut().execution.parquet.pushdown_filters = true;
        config.options_mut().execution.parquet.reorder_filters = true;
        let context = SessionContext::new_with_config_rt(config, buckets::environment()?);
        for table in Table::ALL {
            register(&context, store, table).await?;
        }
        let mut session = Self { context, labels: BTreeSet::new() };
        for (name, text) in last_rows() {
            session.view(&name, &text).await?;
        }
        session.labels = session.label_keys().await?;
        let labels = session.labels_text();
        session.view("samples", &samples_text(&labels)).await?;
        functions::register(&session.context);
        Ok(session)
    }

    async fn view(&self, name: &str, query: &str) -> Result<(), FleetError> {
        let plan = self.context.state().create_logical_plan(query).await?;
        let view = datafusion::datasource::ViewTable::new(plan, Some(query.to_owned()));
        self.context.register_table(name, Arc::new(view))?;
        Ok(())
    }

    async fn label_keys(&self) -> Result<BTreeSet<String>, FleetError> {
        let text = "select distinct unnest(map_keys(labels)) as key from process";
        let mut keys = BTreeSet::new();
        for batch in self.run(text).await? {
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

    /// Runs a query that has some rows as the table `wanted`.
    pub(crate) async fn run_with(
        &self,
        wanted: RecordBatch,
        text: &str,
    ) -> Result<Vec<RecordBatch>, FleetError> {
        const NAME: &str = "wanted";
        let table = MemTable::try_new(wanted.schema(), vec![vec![wanted]])?;
        self.context.register_table(NAME, Arc::new(table))?;
        let answer = self.run(text).await;
        self.context.deregister_table(NAME)?;
        answer
    }

    /// Runs a query.
    pub(crate) async fn run(&self, text: &str) -> Result<Vec<RecordBatch>, FleetError> {
        let frame = self.context.sql(text).await?;
        Ok(frame.collect().await?)
    }
}

/// Registers the files of a table under its name.
///
/// Those of a table with a key have the name `TABLE_rows`, as only the last row of a key counts.
async fn register(context: &SessionContext, store: &Store, table: Table) -> Result<(), FleetError> {
    let name = match table.key() {
        [] => table.name().to_owned(),
        _ => format!("{}_rows", table.name()),
    };
    let files = store.files(table).await?;
    if files.is_empty() {
        let empty = MemTable::try_new(table.schema(), vec![vec![]])?;
        context.register_table(&name, Arc::new(empty))?;
        return Ok(());
    }
    let urls =
        files.iter().map(|file| ListingTableUrl::parse(file.url.as_str())).collect::<Result<Vec<_>, _>>()?;
    let order: Vec<SortExpr> =
        table.order().iter().map(|column| datafusion::prelude::col(*column).sort(true, false)).collect();
    let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
        .with_file_extension(".parquet")
        .with_file_sort_order(vec![order]);
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(options)
        .with_schema(table.schema());
    context.register_table(&name, Arc::new(ListingTable::try_new(config)?))?;
    Ok(())
}

/// The views of tables with a key.
fn last_rows() -> Vec<(String, String)> {
    let with_key = Table::ALL.into_iter().filter(|table| !table.key().is_empty());
    with_key
        .map(|table| {
            let schema = table.schema();
            let others = schema
                .fields()
                .iter()
                .filter(|field| !table.key().contains(&field.name().as_str()) && field.name() != "revision");
            let others: Vec<String> = others
                .map(|field| format!("last_value({0} order by revision) as {0}", quoted(field.name())))
                .collect();
            let keys: Vec<String> = table.key().iter().map(|key| quoted(key)).collect();
            let (keys, name) = (keys.join(", "), table.name());
            (
                name.to_owned(),
                format!("select {keys}, {} from {name}_rows group by {keys}", others.join(", ")),
            )
        })
        .collect()
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
