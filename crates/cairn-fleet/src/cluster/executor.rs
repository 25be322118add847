//! `cairn fleet executor`: fetches tasks from a scheduler and does them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::error::BallistaError;
use ballista_core::extension::SessionConfigExt as _;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_executor::flight_service::BallistaFlightService;
use clap::Args;
use datafusion::execution::context::SessionConfig;
use datafusion::execution::session_state::SessionStateBuilder;
use tonic::transport::Endpoint;

use super::{
    HEARTBEAT_SECONDS, Listening, MOST_MESSAGE_BYTES, SchedulerAddress, connecting, messages, server,
};
use crate::buckets;
use crate::commands::complain;
use crate::error::FleetError;

/// Run an executor, which does a part of each question
///
/// It reads the files of stores under the paths that questions name them by, so a directory has to
/// be mounted at the same place on all machines.
#[derive(Args)]
pub(crate) struct Executor {
    /// The scheduler
    #[arg(long, value_name = "URL")]
    scheduler: SchedulerAddress,

    /// The address to listen on: other executors and clients fetch results from there
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// The name or address by which others reach this machine [default: that of --listen]
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,

    /// Tasks at a time [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Where to make a directory for intermediate results [default: with temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    work_directory: Option<PathBuf>,

    #[command(flatten)]
    listening: Listening,

    /// Report each task
    #[arg(long)]
    verbose: bool,
}

/// A directory that is gone with this.
struct WorkDirectory(PathBuf);

impl WorkDirectory {
    /// Makes a new directory: Ballista removes every directory in the one that it works in.
    fn make(below: Option<&Path>) -> Result<Self, FleetError> {
        use std::os::unix::fs::DirBuilderExt as _;
        let below = below.map_or_else(std::env::temp_dir, Path::to_owned);
        let below = std::path::absolute(&below).map_err(|error| FleetError::file(&below, error))?;
        let name = format!("cairn-executor-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let path = below.join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| FleetError::file(&path, error))?;
        Ok(Self(path))
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Executor {
    pub(crate) async fn run(self) -> Result<u8, FleetError> {
        let failed = |error: &dyn std::fmt::Display| FleetError::new(format!("the executor: {error}"));
        let (listener, key) = self.listening.bind(self.listen)?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let host = match &self.advertise {
            Some(host) => host.clone(),
            None if address.ip().is_unspecified() => {
                return Err(FleetError::usage(format!(
                    "{address} is every address of this machine; give the one that others use with --advertise"
                )));
            }
            None if address.is_ipv6() => format!("[{}]", address.ip()),
            None => address.ip().to_string(),
        };
        let directory = WorkDirectory::make(self.work_directory.as_deref())?;
        messages::show(self.verbose);
        let connect = connecting(key.as_ref());
        self.wait_for_scheduler(&connect).await?;

        let of_sessions = Arc::clone(&connect);
        let environment = buckets::environment().with_temp_file_path(directory.0.clone()).build_arc()?;
        let listener = Mutex::new(Some(listener));
        let config = ExecutorProcessConfig {
            // The port is bound already; this address is only read.
            bind_host: "127.0.0.1".to_owned(),
            external_host: Some(host),
            port: address.port(),
            grpc_port: address.port(),
            scheduler_host: self.scheduler.host.clone(),
            scheduler_port: self.scheduler.port,
            vcores: self.threads.map_or(0, usize::from),
            task_scheduling_policy: TaskSchedulingPolicy::PullStaged,
            work_dir: Some(directory.0.display().to_string()),
            // Results of jobs whose end was never heard of.
            job_data_ttl_seconds: 86_400,
            job_data_clean_up_interval_seconds: 600,
            grpc_max_decoding_message_size: MOST_MESSAGE_BYTES,
            grpc_max_encoding_message_size: MOST_MESSAGE_BYTES,
            executor_heartbeat_interval_seconds: HEARTBEAT_SECONDS,
            override_config_producer: Some(Arc::new(move || {
                SessionConfig::new_with_ballista()
                    .with_ballista_override_create_grpc_client_endpoint(Arc::clone(&of_sessions))
            })),
            // Ballista's own list is without functions of arrays.
            override_function_registry: Some(Arc::new(BallistaFunctionRegistry::from(
                &SessionStateBuilder::new().with_default_features().build(),
            ))),
            // Files in buckets, with the settings of this machine's environment.
            override_runtime_producer: Some(Arc::new(move |_| Ok(Arc::clone(&environment)))),
            override_create_grpc_client_endpoint: Some(connect),
            override_arrow_flight_service: Some(Arc::new(move |work_directory, _, mut shutdown, _| {
                let listener = listener.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
                let key = key.clone();
                tokio::spawn(async move {
                    let failed = |error: &dyn std::fmt::Display| BallistaError::General(error.to_string());
                    let listener = listener.ok_or_else(|| failed(&"the port is in use already"))?;
                    let (mut server, incoming) =
                        server(listener, key.as_ref()).map_err(|error| failed(&error))?;
                    let service = FlightServiceServer::new(BallistaFlightService::new(work_directory))
                        .max_decoding_message_size(MOST_MESSAGE_BYTES as usize)
                        .max_encoding_message_size(MOST_MESSAGE_BYTES as usize);
                    server
                        .add_service(service)
                        .serve_with_incoming_shutdown(incoming, shutdown.recv())
                        .await
                        .map_err(BallistaError::TonicError)
                })
            })),
            ..ExecutorProcessConfig::default()
        };
        complain(&format_args!("the executor listens on {address} and works in {}", directory.0.display()));
        start_executor_process(Arc::new(config)).await.map_err(|error| failed(&error))?;
        Ok(0)
    }

    /// Waits until the scheduler can be reached: both are often started at once.
    async fn wait_for_scheduler(
        &self,
        connect: &ballista_core::extension::EndpointOverrideFn,
    ) -> Result<(), FleetError> {
        const WAITED: Duration = Duration::from_secs(30);
        let scheduler = &self.scheduler;
        let failed = |error: &dyn std::fmt::Display| FleetError::new(format!("{scheduler}: {error}"));
        let begun = std::time::Instant::now();
        let mut was_reported = false;
        loop {
            let endpoint = Endpoint::from_shared(scheduler.http()).map_err(|error| failed(&error))?;
            let error = match connect(endpoint).map_err(|error| failed(&error))?.connect().await {
                Ok(_) => return Ok(()),
                Err(error) => super::client::whole_text(&error),
            };
            if begun.elapsed() > WAITED {
                return Err(failed(&format_args!("no scheduler answers there: {error}")));
            }
            if !was_reported {
                complain(&format_args!("{scheduler}: no scheduler answers yet: {error}"));
                was_reported = true;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
}
