//! `cairn fleet scheduler`: takes plans, divides them into tasks, gives these to executors.

use std::net::SocketAddr;
use std::sync::Arc;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_core::utils::default_session_builder;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::create_scheduler;
use clap::Args;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};

use super::{LOST_AFTER_SECONDS, Listening, MOST_MESSAGE_BYTES, SEARCH_SECONDS, messages, server};
use crate::buckets;
use crate::commands::complain;
use crate::error::FleetError;

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
            executor_timeout_seconds: LOST_AFTER_SECONDS,
            expire_dead_executor_interval_seconds: SEARCH_SECONDS,
            no_executors_grace_period_seconds: LOST_AFTER_SECONDS,
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
        let service = SchedulerGrpcServer::new(scheduler)
            .max_decoding_message_size(MOST_MESSAGE_BYTES as usize)
            .max_encoding_message_size(MOST_MESSAGE_BYTES as usize);
        let (mut server, incoming) = server(listener, key.as_ref()).map_err(|error| failed(&error))?;
        complain(&format_args!("the scheduler listens on df://{address}"));
        // Streams to clients last as long as their jobs, so that none is waited for.
        let serving = server.add_service(service).serve_with_incoming(incoming);
        tokio::select! {
            served = serving => served.map(|()| 0).map_err(|error| failed(&error)),
            () = super::ended() => Ok(0),
        }
    }
}
