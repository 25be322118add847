//! Contexts whose plans run on a cluster.

use std::error::Error;
use std::time::Duration;

use ballista_core::extension::{SessionConfigExt as _, SessionStateExt as _};
use clap::Args;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionContext;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;

use super::{Guard, MOST_MESSAGE_BYTES, SchedulerAddress, connecting};
use crate::commands::complain;
use crate::error::FleetError;

/// Where a question runs.
#[derive(Args, Clone, Debug)]
pub(crate) struct On {
    /// Run the question on a cluster, by the address of its scheduler: df://HOST:PORT
    #[arg(long = "on", value_name = "URL")]
    scheduler: Option<SchedulerAddress>,

    /// Parts of each step on a cluster: as many threads of executors are busy. Each part is a task
    /// and a file, so that too many of them take longer
    #[arg(long, value_name = "N", default_value_t = 8, requires = "scheduler",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    partitions: u16,

    #[command(flatten)]
    guard: Guard,
}

impl On {
    /// Returns a context whose plans run on the cluster, with the settings of `local`.
    ///
    /// It has no tables yet. Nothing is returned when the question runs here.
    pub(crate) fn remote(&self, local: &SessionContext) -> Result<Option<Remote>, FleetError> {
        let Some(scheduler) = &self.scheduler else { return Ok(None) };
        let key = self.guard.key()?;
        let mut config = local
            .copied_config()
            .upgrade_for_ballista()
            .with_target_partitions(self.partitions.into())
            // It measures first and plans then, which takes longer for plans of known tables.
            .with_ballista_adaptive_query_planner(false)
            .with_ballista_broadcast_join_threshold_bytes(0)
            .with_ballista_broadcast_join_threshold_rows(0)
            .with_ballista_job_name("cairn fleet")
            .with_ballista_grpc_client_max_message_size(MOST_MESSAGE_BYTES as usize)
            .with_ballista_override_create_grpc_client_endpoint(connecting(key.as_ref()));
        let optimizer = &mut config.options_mut().optimizer;
        // As here. Tables of names are small, and merging would sort millions of samples first.
        optimizer.prefer_hash_join = true;
        // No join collects one side. Ballista divides such a join by key when it must keep rows
        // without a match, and the operator above it then reads one part of several: with tables
        // of one file, the rows of the others were missing without an error.
        optimizer.hash_join_single_partition_threshold = 0;
        optimizer.hash_join_single_partition_threshold_rows = 0;
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config)
            .with_runtime_env(local.runtime_env())
            .build()
            .upgrade_for_ballista(scheduler.http())?;
        Ok(Some(Remote { context: SessionContext::new_with_state(state), scheduler: scheduler.clone() }))
    }
}

/// A cluster that knows the tables of a store.
pub(crate) struct Remote {
    pub(crate) context: SessionContext,
    scheduler: SchedulerAddress,
}

impl Remote {
    /// True for a plan that members can be given.
    ///
    /// Ballista drops the columns of empty relations, and joins without equal keys are divided as
    /// those that collect one side are.
    pub(crate) fn takes(plan: &LogicalPlan) -> Result<bool, DataFusionError> {
        let mut takes = true;
        plan.apply_with_subqueries(|node| {
            takes &= match node {
                LogicalPlan::EmptyRelation(empty) => empty.schema.fields().is_empty(),
                LogicalPlan::Join(join) => !join.on.is_empty(),
                _ => true,
            };
            Ok(if takes { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
        })?;
        Ok(takes)
    }

    /// Waits for an answer, and says so when none comes.
    ///
    /// A job waits for its first executor forever.
    pub(crate) async fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, DataFusionError>>,
    ) -> Result<T, FleetError> {
        const NOTICED_AFTER: Duration = Duration::from_secs(15);
        let scheduler = &self.scheduler;
        let mut answer = std::pin::pin!(answer);
        let result = tokio::select! {
            result = &mut answer => result,
            () = tokio::time::sleep(NOTICED_AFTER) => {
                complain(&format_args!("{scheduler}: no answer yet; has the cluster executors?"));
                answer.await
            }
        };
        result.map_err(|error| {
            let text = whole_text(&error);
            // No other job of a waiting client is cancelled.
            let why = if text.ends_with("failed: Cancelled") {
                "an executor that worked on it was lost".to_owned()
            } else {
                short(&text)
            };
            FleetError::new(format!(
                "{scheduler}: the cluster has not answered, and a part of an answer is not shown; ask again: {why}"
            ))
        })
    }
}

/// The texts of an error and of its causes, each once.
pub(super) fn whole_text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let of_cause = error.to_string();
        if !text.contains(&of_cause) {
            text += ": ";
            text += &of_cause;
        }
        cause = error.source();
    }
    text
}

/// The beginning of a text: errors of tasks repeat whole plans.
fn short(text: &str) -> String {
    const SHOWN: usize = 600;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
