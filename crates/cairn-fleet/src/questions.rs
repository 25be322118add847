//! The questions that commands ask, in SQL.
//!
//! Each adds up by stack first and finds names for the few rows that are shown. Rows of equal value
//! are in the order of service and shape, so that every engine gives the same list.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray as _, RecordBatch, StringArray};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use cairn_format::Hexadecimal;
use cairn_store::{Id, Table};
use clap::ValueEnum;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::error::FleetError;

/// The samples that a question is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// A condition in SQL on columns of samples and labels.
    pub(crate) condition: Option<String>,
    /// Only slices that ended after this moment, in milliseconds since 1970.
    pub(crate) since_ms: Option<i64>,
}

impl Selection {
    fn text(&self) -> String {
        let condition = self.condition.as_deref().map(|condition| format!("({condition})"));
        let since = self.since_ms.map(|since| format!("t_end > {since}"));
        let parts: Vec<String> = condition.into_iter().chain(since).collect();
        if parts.is_empty() { "true".to_owned() } else { parts.join(" and ") }
    }

    /// The table that the condition is about.
    fn table(&self) -> &'static str {
        samples_for(self.condition.as_deref().unwrap_or_default())
    }
}

/// The table that has the columns of a condition.
///
/// It is `samples` with the labels of processes, or `sample`, which need not be joined to them.
pub(crate) fn samples_for(condition: &str) -> &'static str {
    const WORDS: [&str; 13] = [
        "and",
        "between",
        "false",
        "ilike",
        "in",
        "is",
        "like",
        "not",
        "null",
        "or",
        "true",
        "starts_with",
        "lower",
    ];
    let is_plain = |token: &Token| match token {
        Token::Word(word) => {
            let name = word.value.as_str();
            let is_column = Table::Sample.schema().column_with_name(&name.to_ascii_lowercase()).is_some();
            is_column || word.quote_style.is_none() && WORDS.contains(&name.to_ascii_lowercase().as_str())
        }
        _ => true,
    };
    match Tokenizer::new(&GenericDialect {}, condition).tokenize() {
        Ok(tokens) if tokens.iter().all(is_plain) => "sample",
        // A label, or an error that the engine explains better.
        _ => "samples",
    }
}

/// A measure of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Measure {
    /// Bytes alive at the end of each process's last slice
    Live,
    /// Bytes at each process's peak
    Peak,
    /// Bytes that were allocated
    Allocated,
}

impl Measure {
    /// The column of its bytes, and that of its blocks.
    const fn columns(self) -> (&'static str, &'static str) {
        match self {
            Self::Live => ("live_bytes", "live_blocks"),
            Self::Peak => ("peak_bytes", "peak_blocks"),
            Self::Allocated => ("alloc_bytes", "alloc_blocks"),
        }
    }
}

/// The kind of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Rows {
    /// Stacks, the same one in all builds of a service
    Stack,
    /// Services
    Service,
}

/// Joins the names of shapes to the rows that are shown.
fn with_names(rows: &str, order: &str, limit: usize) -> String {
    format!(
        "select r.*, h.frames as frames from ({rows} order by {order} limit {limit}) r \
         left join shape h on h.shape_id = r.shape_id order by {order}"
    )
}

/// Sums of stacks as sums of shapes. A stack whose names are not known is its own shape.
fn by_shape(columns: &str) -> String {
    format!(
        "select service, coalesce(s.shape_id, t.stack_id) as shape_id, {columns} \
         from by_stack t left join stack s on s.stack_id = t.stack_id group by 1, 2"
    )
}

/// `top`: what holds or allocates most.
pub(crate) fn top(selection: &Selection, measure: Measure, limit: usize) -> String {
    let (chosen, table) = (selection.text(), selection.table());
    let (bytes, blocks) = measure.columns();
    let at = match measure {
        // A peak is the process's; each of its slices repeats it.
        Measure::Live | Measure::Peak => "c.t_end = b.last",
        Measure::Allocated => "true",
    };
    let rows = by_shape("sum(bytes) as bytes, sum(blocks) as blocks");
    let rows = with_names(
        &format!("select * from ({rows}) where bytes > 0"),
        "bytes desc, service, shape_id",
        limit,
    );
    format!(
        "with chosen as (select * from {table} where {chosen}), \
         bounds as (select process, max(t_end) as last from chosen group by process), \
         by_stack as (select c.service as service, c.stack_id as stack_id, sum(c.{bytes}) as bytes, \
           sum(c.{blocks}) as blocks from bounds b join chosen c on c.process = b.process where {at} \
           group by 1, 2) {rows}"
    )
}

/// `leaks`: the growth from the first to the last slice of each process. A process with one slice
/// that has ended leaked all that it left.
pub(crate) fn leaks(selection: &Selection, rows: Rows, limit: usize) -> String {
    let (chosen, table) = (selection.text(), selection.table());
    let by_stack = format!(
        "with chosen as (select * from {table} where {chosen}), \
         seen as (select process, min(t_end) as first, max(t_end) as last from chosen group by process), \
         bounds as (select s.process as process, p.service as service, s.first as first, s.last as last \
           from seen s join process p on p.process = s.process \
           where s.first < s.last or p.ended is not null), \
         grown as (select c.process as process, c.stack_id as stack_id, \
           sum(case when c.t_end = b.last then c.live_bytes else -c.live_bytes end) as bytes, \
           sum(case when c.t_end = b.last then c.live_blocks else -c.live_blocks end) as blocks \
           from bounds b join chosen c on c.process = b.process \
           where c.t_end = b.first or c.t_end = b.last group by 1, 2), \
         by_stack as (select b.service as service, g.stack_id as stack_id, sum(g.bytes) as bytes, \
           sum(g.blocks) as blocks, \
           sum(case when g.bytes > 0 then 1 else 0 end) as grew_in, \
           sum(case when g.bytes < 0 then 1 else 0 end) as shrank_in \
           from bounds b join grown g on g.process = b.process group by 1, 2)"
    );
    match rows {
        Rows::Service => format!(
            "{by_stack} select service, sum(bytes) as bytes, sum(blocks) as blocks from by_stack \
             where bytes > 0 group by service order by bytes desc, service limit {limit}"
        ),
        Rows::Stack => {
            let rows = by_shape(
                "sum(bytes) as bytes, sum(blocks) as blocks, sum(grew_in) as grew_in, sum(shrank_in) as shrank_in",
            );
            // Memory that shrinks in many processes goes up and down, and is no leak.
            let rows = format!("select * from ({rows}) where bytes > 0 and 9 * shrank_in <= grew_in");
            format!("{by_stack} {}", with_names(&rows, "bytes desc, service, shape_id", limit))
        }
    }
}

/// `growth`: what a process holds in one version and in another, on average over processes and
/// slices.
pub(crate) fn growth(selection: &Selection, from: &str, to: &str, limit: usize) -> String {
    let (chosen, table) = (selection.text(), selection.table());
    let (from, to) = (literal(from), literal(to));
    let rows = by_shape("sum(before) as before, sum(after) as after");
    let rows = format!(
        "select w.service as service, w.shape_id as shape_id, \
         coalesce(w.after / nullif(n.after, 0), 0) - coalesce(w.before / nullif(n.before, 0), 0) as grew, \
         coalesce(w.before / nullif(n.before, 0), 0) as before, \
         coalesce(w.after / nullif(n.after, 0), 0) as after \
         from slices n join ({rows}) w on n.service = w.service where n.before > 0 and n.after > 0"
    );
    let rows = format!("select * from ({rows}) where grew <> 0");
    format!(
        "with chosen as (select * from {table} where version in ({from}, {to}) and {chosen}), \
         slices as (select service, sum(case when version = {from} then 1 else 0 end) as before, \
           sum(case when version = {to} then 1 else 0 end) as after \
           from (select distinct service, version, process, t_end from chosen) group by service), \
         by_stack as (select service, stack_id, \
           sum(case when version = {from} then live_bytes else 0 end) as before, \
           sum(case when version = {to} then live_bytes else 0 end) as after \
           from chosen group by service, stack_id) {}",
        with_names(&rows, "grew desc, service, shape_id", limit)
    )
}

/// `introduced`: what each version of a service holds in a shape, per host.
pub(crate) fn introduced(selection: &Selection, shape: Id) -> String {
    let (chosen, table) = (selection.text(), selection.table());
    format!(
        "with stacks as (select stack_id from stack where coalesce(shape_id, stack_id) = decode('{shape}', 'hex')), \
         held as (select c.service as service, c.version as version, c.host as host, c.process as process, \
           sum(c.live_bytes) as bytes from {table} c join stacks s on s.stack_id = c.stack_id \
           where {chosen} group by 1, 2, 3, 4), \
         slices as (select service, version, host, process, count(*) as n, min(t_end) as first from \
           (select distinct service, version, host, process, t_end from {table} \
            where service in (select service from held) and {chosen}) group by 1, 2, 3, 4), \
         hosts as (select n.service as service, n.version as version, n.host as host, min(n.first) as first, \
           sum(coalesce(h.bytes, 0) / n.n) as bytes \
           from slices n left join held h on h.process = n.process group by 1, 2, 3) \
         select service, version, count(*) as hosts, cast(median(bytes) as bigint) as bytes, max(bytes) as most, \
           min(first) as first from hosts group by service, version order by service, first, version"
    )
}

/// Adds the verdict to the answer of [`introduced`].
///
/// The version that holds a half more than the one before it, and at least a KiB more, introduced
/// the stack.
pub(crate) fn with_verdict(batches: &[RecordBatch]) -> Result<Vec<RecordBatch>, FleetError> {
    const LEAST_BYTES: i64 = 1024;
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    let all = concat_batches(&first.schema(), batches)?;
    let column = |name: &str, kind: &DataType| -> Result<ArrayRef, FleetError> {
        let column = all.column_by_name(name);
        let column = column.ok_or_else(|| FleetError::new(format!("the answer has no column {name}")))?;
        Ok(cast(column, kind)?)
    };
    let (services, bytes) = (column("service", &DataType::Utf8)?, column("bytes", &DataType::Int64)?);
    let (services, bytes) = (services.as_string::<i32>(), bytes.as_primitive::<Int64Type>());
    let mut verdicts = Vec::new();
    let mut before: Option<(&str, i64)> = None;
    for row in 0..all.num_rows() {
        let (service, held) = (services.value(row), bytes.value(row));
        let verdict = match before {
            Some((last, less)) if last == service => {
                let has_grown = held - less >= LEAST_BYTES && held >= less + less / 2;
                if has_grown { "introduced" } else { "" }
            }
            _ if held >= LEAST_BYTES => "from the first version on",
            _ => "",
        };
        verdicts.push(verdict);
        before = Some((service, held));
    }
    let mut fields: Vec<Field> = all.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    fields.push(Field::new("verdict", DataType::Utf8, false));
    let mut columns = all.columns().to_vec();
    columns.push(Arc::new(StringArray::from(verdicts)));
    Ok(vec![RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?])
}

/// Sums of a selection by stack, with the frames of each. `frames` is the query of
/// [`Session::frames_of`](crate::session::Session::frames_of) for the stacks `by_stack`.
pub(crate) fn stacks(selection: &Selection, frames: &str) -> String {
    let (chosen, table) = (selection.text(), selection.table());
    let sum = |column: &str| format!("sum({column}) as {column}");
    let last =
        |column: &str| format!("sum(case when c.t_end = b.last then c.{column} else 0 end) as {column}");
    let at_last = ["live_bytes", "live_blocks", "peak_bytes", "peak_blocks"].map(last).join(", ");
    let all = ["alloc_bytes", "alloc_blocks", "temporary"].map(sum).join(", ");
    format!(
        "with chosen as (select * from {table} where {chosen}), \
         bounds as (select process, max(t_end) as last from chosen group by process), \
         by_stack as (select c.stack_id as stack_id, {at_last}, {all} \
           from bounds b join chosen c on c.process = b.process group by 1), \
         wanted as ({frames}) \
         select t.*, s.frames as frames from by_stack t join wanted s on s.stack_id = t.stack_id \
         order by t.stack_id"
    )
}

/// Holds for processes whose sums or times may be wrong.
const IS_DOUBTED: &str = "(remarks <> '' or sample_bytes is not null or clock <> 'sender')";

/// How many processes of the store have sums or times that may be wrong.
pub(crate) fn doubted_processes() -> String {
    format!("select count(*) from process where {IS_DOUBTED}")
}

/// How many processes of a selection lost something, are sampled, or had a wrong clock. Place and
/// words of one that lost something come last.
pub(crate) fn doubts(selection: &Selection) -> String {
    let (chosen, table) = (selection.text(), selection.table());
    let count = |condition: &str| format!("coalesce(sum(case when {condition} then 1 else 0 end), 0)");
    let example = "case when remarks <> '' then \
                   case when host <> '' then host else service end || chr(0) || remarks end";
    format!(
        "with doubted as (select * from process where {IS_DOUBTED}), \
         counted as (select {} as lossy, {} as sampled, {} as misdated, min({example}) as example from doubted \
           where process in (select process from {table} where {chosen})) \
         select lossy, sampled, misdated, split_part(example, chr(0), 1), split_part(example, chr(0), 2) \
         from counted",
        count("remarks <> ''"),
        count("sample_bytes is not null"),
        count("clock <> 'sender'"),
    )
}

/// The shapes whose identifier begins with these digits.
pub(crate) fn shapes_like(digits: &str) -> Result<String, FleetError> {
    if digits.is_empty() || digits.len() > 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(FleetError::usage(format!(
            "{digits}: a shape is named by hexadecimal digits, as `cairn fleet growth` lists them"
        )));
    }
    let digits = digits.to_ascii_lowercase();
    Ok(format!(
        "select distinct encode(shape_id, 'hex') as shape from \
         (select coalesce(shape_id, stack_id) as shape_id from stack) \
         where starts_with(encode(shape_id, 'hex'), '{digits}') order by shape limit 2"
    ))
}

/// Identifiers in SQL, as `in (…)` takes them.
pub(crate) fn ids<'a>(ids: impl IntoIterator<Item = &'a [u8]>) -> String {
    let ids: Vec<String> = ids.into_iter().map(|id| format!("X'{}'", Hexadecimal(id))).collect();
    ids.join(", ")
}

/// A text in SQL.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_where_they_should() {
        assert_eq!(literal("1.4' or 'a' = 'a"), "'1.4'' or ''a'' = ''a'");
        assert!(shapes_like("12'").is_err());
        assert!(shapes_like("").is_err());
    }

    #[test]
    fn labels_alone_need_processes() {
        for plain in
            ["", "service = 'web' and Version in ('1.4', '1.5')", "\"host\" like 'region%'", "t_end > 5"]
        {
            assert_eq!(samples_for(plain), "sample", "{plain}");
        }
        for with_label in ["region = 'eu'", "service = 'a' or \"and\" = 'b'", "service = 'a", "s.host = 'a'"]
        {
            assert_eq!(samples_for(with_label), "samples", "{with_label}");
        }
    }
}
