//! Functions of SQL that make tables: `flame` and `inclusive`.
//!
//! Each becomes a plan of what every engine has, so that a plan with them can run elsewhere.

use std::sync::Arc;

use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::datasource::ViewTable;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::Expr;
use futures::FutureExt as _;

use crate::questions::samples_for;

/// Registers the functions.
pub(crate) fn register(context: &SessionContext) {
    for kind in [Kind::Flame, Kind::Inclusive] {
        let function = Function { kind, context: context.clone() };
        context.register_udtf(kind.name(), Arc::new(function));
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Flame,
    Inclusive,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Flame => "flame",
            Self::Inclusive => "inclusive",
        }
    }
}

struct Function {
    kind: Kind,
    context: SessionContext,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind.fmt(formatter)
    }
}

/// Rows of such a table. Without a limit, the engine would drop the order inside of a query.
const MOST_ROWS: u32 = 1_000_000;

/// Sums by stack of the selected samples, so that joins have one row a stack, not one a sample.
fn by_stack(condition: &str, column: &str) -> String {
    let table = samples_for(condition);
    format!("select stack_id, sum({column}) as value from {table} where {condition} group by stack_id")
}

impl Function {
    fn query(&self, condition: &str, column: &str) -> String {
        let sums = by_stack(condition, column);
        // Shapes begin at the innermost frame, graphs at the outermost.
        let frames = format!(
            "select array_reverse(h.frames) as frames, t.value as value from ({sums}) t \
             join stack s on s.stack_id = t.stack_id join shape h on h.shape_id = s.shape_id"
        );
        match self.kind {
            // A node is a beginning of a stack; sorted by it, children follow their parent.
            Kind::Flame => format!(
                "select cast(min(step) as bigint) as level, sum(value) as value, \
                 sum(case when step = array_length(frames) then value else 0 end) as self, \
                 coalesce(min(path[step]['function']), min(path[step]['module']), 'all') as label \
                 from (select frames, value, step, array_slice(frames, 1, step) as path from \
                       (select frames, value, unnest(generate_series(0, array_length(frames))) as step \
                        from ({frames}))) \
                 group by path order by path limit {MOST_ROWS}"
            ),
            // A function that calls itself counts once.
            Kind::Inclusive => format!(
                "select coalesce(frame['function'], frame['module']) as function, frame['module'] as module, \
                 sum(value) as value from \
                 (select value, unnest(array_distinct(frames)) as frame from ({frames})) \
                 group by 1, 2 order by value desc, function, module limit {MOST_ROWS}"
            ),
        }
    }
}

impl TableFunctionImpl for Function {
    fn call_with_args(&self, arguments: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let refused = || {
            let name = self.kind.name();
            DataFusionError::Plan(format!(
                "{name}(condition, column): both are texts, as {name}('service = ''web''', 'live_bytes')"
            ))
        };
        let text = |at: usize, usual: &str| match arguments.exprs().get(at) {
            None => Ok(usual.to_owned()),
            Some(Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _)) => {
                Ok(text.clone())
            }
            Some(_) => Err(refused()),
        };
        let (condition, column) = (text(0, "true")?, text(1, "live_bytes")?);
        if !cairn_store::COUNTERS.contains(&column.as_str()) {
            return Err(DataFusionError::Plan(format!(
                "{column}: no column that counts; these do: {}",
                cairn_store::COUNTERS.join(", ")
            )));
        }
        let query = self.query(&condition, &column);
        let state = self.context.state();
        // The tables are in memory, so that nothing is waited for.
        let plan = state
            .create_logical_plan(&query)
            .now_or_never()
            .unwrap_or_else(|| Err(DataFusionError::Plan("the tables are not there yet".to_owned())))?;
        Ok(Arc::new(ViewTable::new(plan, Some(query))))
    }
}
