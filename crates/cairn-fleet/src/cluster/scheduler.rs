//! `cairn fleet scheduler`: takes plans, divides them into tasks, gives these to executors.
//!
//! Nothing is done a second time. Ballista can repeat the stages of a lost executor, and was seen
//! to count the rows of finished tasks twice then, without an error. So a job fails with its first
//! lost result, and [`end_jobs_of_silent`] ends the jobs of executors that are not heard of.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::serde::protobuf::job_status::Status;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_core::utils::default_session_builder;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::create_scheduler;
use ballista_scheduler::scheduler_server::SchedulerServer;
use clap::Args;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};

use super::{LOST_AFTER_SECONDS, Listening, MOST_MESSAGE_BYTES, SEARCH_SECONDS, messages, server};
use crate::buckets;
use crate::commands::complain;
use crate::error::FleetError;

/// A time after which Ballista itself would repeat the work of an executor. Before 1970, so that it
/// expects a sign of life since the epoch.
const NEVER_SECONDS: u64 = u32::MAX as u64;

/// Run a scheduler, which divides questions among executors
///
/// Start it first, then executors on the same or on other machines, and ask with `--on
/// df://HOST:PORT`. It keeps nothing on disk: after a restart executors come back by themselves, and
/// questions that were running have to be asked again.
#[derive(Args)]
pub(crate) struct Scheduler {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50050")]
    listen: SocketAddr,

    #[command(flatten)]
    listening: Listening,

    /// Report each job and task
    #[arg(long)]
    verbose: bool,
}

impl Scheduler {
    pub(crate) async fn run(self) -> Result<u8, FleetError> {
        let failed = |error: &dyn std::fmt::Display| FleetError::new(format!("the scheduler: {error}"));
        let (listener, key) = self.listening.bind(self.listen)?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        messages::show(self.verbose);
        // Plans begin with a look at the files.
        let environment = buckets::environment().build_arc()?;
        let config = Arc::new(SchedulerConfig {
            external_host: address.ip().to_string(),
            bind_port: address.port(),
            bind_host: address.ip().to_string(),
            scheduling_policy: TaskSchedulingPolicy::PullStaged,
            task_distribution: TaskDistributionPolicy::RoundRobin,
            task_max_failures: 1,
            stage_max_failures: 1,
            executor_timeout_seconds: NEVER_SECONDS,
            executor_termination_grace_period: NEVER_SECONDS,
            // Results that nobody fetched.
            finished_job_data_clean_up_interval_seconds: 60,
            finished_job_state_clean_up_interval_seconds: 300,
            grpc_server_max_decoding_message_size: MOST_MESSAGE_BYTES,
            grpc_server_max_encoding_message_size: MOST_MESSAGE_BYTES,
            override_session_builder: Some(Arc::new(move |config| {
                let state = default_session_builder(config)?;
                Ok(SessionStateBuilder::new_from_existing(state)
                    .with_runtime_env(Arc::clone(&environment))
                    .build())
            })),
            ..SchedulerConfig::default()
        });
        let cluster = BallistaCluster::new_from_config(&config).await.map_err(|error| failed(&error))?;
        let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, config)
            .await
            .map_err(|error| failed(&error))?;
        let watching = end_jobs_of_silent(&scheduler);
        let service = SchedulerGrpcServer::new(scheduler.clone())
            .max_decoding_message_size(MOST_MESSAGE_BYTES as usize)
            .max_encoding_message_size(MOST_MESSAGE_BYTES as usize);
        let (mut server, incoming) = server(listener, key.as_ref()).map_err(|error| failed(&error))?;
        complain(&format_args!("the scheduler listens on df://{address}"));
        // Streams to clients last as long as their jobs, so that none is waited for.
        let serving = server.add_service(service).serve_with_incoming(incoming);
        tokio::select! {
            () = watching => Ok(0),
            served = serving => served.map(|()| 0).map_err(|error| failed(&error)),
            () = super::ended() => Ok(0),
        }
    }
}

/// Ends the jobs of executors that fall silent, and forgets these executors. Never returns.
///
/// Work is given out in answers to an executor's own requests, and each request is a sign of life.
/// So jobs that began after the last one go on: the executor has no part of them.
async fn end_jobs_of_silent(scheduler: &SchedulerServer<LogicalPlanNode, PhysicalPlanNode>) {
    let executors = &scheduler.state.executor_manager;
    loop {
        tokio::time::sleep(Duration::from_secs(SEARCH_SECONDS)).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let states = match executors.get_executors_state().await {
            Ok(states) => states,
            Err(error) => {
                complain(&format_args!("the scheduler: its executors cannot be listed: {error}"));
                continue;
            }
        };
        for (executor, last_sign, _) in states {
            let last_sign = last_sign.unwrap_or_default();
            if now.saturating_sub(last_sign) < Duration::from_secs(LOST_AFTER_SECONDS) {
                continue;
            }
            // Signs of life are rounded down to seconds.
            let last_sign_end = (last_sign + Duration::from_secs(1)).as_millis();
            let mut ended = 0;
            for (id, job) in scheduler.state.task_manager.get_running_job_cache().iter() {
                let has_part = matches!(
                    &job.status,
                    Some(Status::Running(running)) if u128::from(running.started_at) <= last_sign_end
                );
                if has_part && scheduler.cancel_job(id.clone()).await.is_ok() {
                    ended += 1;
                }
            }
            let _ = executors.remove_executor(&executor.id, None).await;
            let (host, port) = (&executor.host, executor.port);
            complain(&format_args!(
                "the executor at {host}:{port} has been silent for {LOST_AFTER_SECONDS} s; {ended} questions are ended"
            ));
        }
    }
}
