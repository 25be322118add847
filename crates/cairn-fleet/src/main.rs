//! `cairn fleet`: the memory of many machines, asked in SQL.
//!
//! A store is a directory of tables; the crate `cairn-store` writes it. This program adds files to
//! it, asks it, and maintains it. `cairn fleet ...` starts it.
//!
//! | module | task |
//! |---|---|
//! | `add` | files as blocks |
//! | `session` | tables in the query engine |
//! | `buckets` | object stores for the query engine |
//! | `questions`, `functions` | questions in SQL |
//! | `doubts` | why an answer may be wrong |
//! | `answer` | answers as text, JSON, CSV, Parquet |
//! | `cluster` | the same plans on several machines |
//! | `flight` | Flight SQL, for programs |
//! | `selected_heap` | a selection as a heap, for pictures |
//! | `serve` | profiles over HTTP |
//! | `symbols`, `shapes` | names that are found later, and what follows |
//! | `view` | the page of `cairn view` over a selection |
//! | `generate` | stores with known leaks, for measurements |

#![forbid(unsafe_code)]

mod add;
mod answer;
mod buckets;
mod cluster;
mod commands;
mod doubts;
mod error;
mod flight;
mod functions;
mod generate;
mod questions;
mod selected_heap;
mod serve;
mod session;
mod shapes;
mod symbols;
mod view;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let command = commands::Fleet::parse();
    // Plans nest deeply, and each level is a call.
    const STACK_BYTES: usize = 32 << 20;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK_BYTES).enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(async {
            match tokio::spawn(command.run()).await {
                Ok(result) => result,
                Err(error) => Err(error::FleetError::new(format!("cairn fleet has failed: {error}"))),
            }
        }),
        Err(error) => Err(error::FleetError::new(format!("threads cannot be started: {error}"))),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            commands::complain(&error);
            ExitCode::from(error.code())
        }
    }
}
