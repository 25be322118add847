//! `bench fleet PROGRAM [HOSTS [SEED]]`: a store of made-up hosts whose leaks are known.
//!
//! It prints the cost of making, merging and asking the store, its size, and how many leaks are
//! found.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fleet_ingestion;
use crate::heap_report::{CommandCost, cost};
use crate::machine;

pub(crate) fn run(program: &str, hosts: u32, seed: u64) -> Result<(), String> {
    let program = fs::canonicalize(program).map_err(|error| format!("{program}: {error}"))?;
    let program = program.display().to_string();
    let directory = std::env::temp_dir().join(format!("cairn-bench-fleet-{}", std::process::id()));
    fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let result = measure(&program, &directory, hosts, seed);
    let _ = fs::remove_dir_all(&directory);
    result
}

fn measure(program: &str, directory: &Path, hosts: u32, seed: u64) -> Result<(), String> {
    let store = directory.join("store").display().to_string();
    let truth = directory.join("truth").display().to_string();
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
    let fleet =
        |command: &str, options: &[&str]| words(&[&[program, command, store.as_str()], options].concat());
    print!("{}", machine::description());
    println!("- {hosts} hosts, seed {seed}\n");
    println!("| step | wall | processor | peak memory |\n|---|---:|---:|---:|");
    let row = |name: &str, cost: &CommandCost| {
        let CommandCost { wall_seconds, processor_seconds, peak_mib } = cost;
        println!("| {name} | {wall_seconds:.2} s | {processor_seconds:.2} s | {peak_mib:.0} MiB |");
    };
    let generate = format!("exec {program} generate {store} --hosts {hosts} --seed {seed} > {truth}");
    row("generate, store and commit", &cost(&words(&["sh", "-c", &generate]))?);
    let rows: u64 = asked(program, &["sql", &store, "select count(*) as n from sample", "--format", "csv"])?
        .lines()
        .nth(1)
        .and_then(|line| line.parse().ok())
        .ok_or("no number of rows")?;
    let before = bytes_below(&directory.join("store/sample"))?;
    let questions = |state: &str| -> Result<(), String> {
        let svg = directory.join(format!("{state}.svg")).display().to_string();
        let of_service = "service = 'service-03'";
        for (name, question) in [
            ("flame of a service", fleet("flame", &["--where", of_service, "-o", &svg])),
            ("growth over all services", fleet("growth", &["--from", "1.4", "--to", "1.5"])),
            ("leaks per stack over hosts", fleet("leaks", &[])),
            ("top", fleet("top", &[])),
        ] {
            row(&format!("{name}, {state}"), &cost(&question)?);
        }
        Ok(())
    };
    questions("as stored")?;
    row("compact", &cost(&fleet("compact", &[]))?);
    cost(&fleet("expire", &["--older", "36500d", "--unnamed-older", "0s"]))?;
    let after = bytes_below(&directory.join("store/sample"))?;
    questions("compacted")?;
    let cluster = Cluster::start(program, directory)?;
    println!("\n| question, compacted | here | scheduler and 2 executors | demand |\n|---|---:|---:|---:|");
    for (name, command, options) in [
        ("flame of a service", "flame", &["--where", "service = 'service-03'"][..]),
        ("growth over all services", "growth", &["--from", "1.4", "--to", "1.5"]),
        ("leaks per stack over hosts", "leaks", &[]),
    ] {
        // In turn, and the least of each: another process of the machine delays both alike.
        let (mut here, mut there) = (f64::INFINITY, f64::INFINITY);
        for turn in 0..3 {
            let picture = directory.join(format!("{command}-{turn}.svg")).display().to_string();
            let mut question = fleet(command, options);
            if command == "flame" {
                question.extend(words(&["--force", "-o", &picture]));
            }
            here = here.min(cost(&question)?.wall_seconds);
            question.extend(words(&["--on", &cluster.url]));
            there = there.min(cost(&question)?.wall_seconds);
        }
        let demand = 2.0 * here + 1.5;
        println!("| {name} | {here:.2} s | {there:.2} s | {demand:.2} s |");
    }
    drop(cluster);
    let per_row = |bytes: u64| bytes as f64 / rows as f64;
    let taken = fleet_ingestion::run(program, directory)?;
    let fleet_ingestion::Ingestion { rows: taken_rows, wall_seconds, processor_seconds, peak_mib } = taken;
    row("serve: blocks over HTTP and commits", &CommandCost { wall_seconds, processor_seconds, peak_mib });
    println!("\n{taken_rows} rows over HTTP: {:.0} a second and core", taken_rows as f64 / processor_seconds);
    println!("\n{rows} rows: {:.2} bytes a row as stored, {:.2} compacted", per_row(before), per_row(after));

    let truth = fs::read_to_string(&truth).map_err(|error| format!("{truth}: {error}"))?;
    let planted: BTreeSet<(&str, &str)> = truth
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let service = words.next()?;
            Some((service, words.nth(1)?))
        })
        .collect();
    let leaks = asked(program, &["leaks", &store, "--format", "csv", "--limit", &planted.len().to_string()])?;
    let found = leaks.lines().skip(1).filter_map(|line| {
        let mut cells = line.split(',');
        Some((cells.next()?, cells.next()?))
    });
    let right = found.filter(|found| planted.contains(found)).count();
    println!("leaks: {right} of {} planted ones in the first {0}", planted.len());
    Ok(())
}

/// A scheduler and two executors of a thread each, until it is dropped.
struct Cluster {
    url: String,
    members: Vec<Child>,
}

impl Cluster {
    fn start(program: &str, directory: &Path) -> Result<Self, String> {
        let mut cluster = Self { url: String::new(), members: Vec::new() };
        let address = cluster.add(program, &["scheduler", "--listen", "127.0.0.1:0"], "listens on ")?;
        cluster.url = address;
        let work = directory.display().to_string();
        for _ in 0..2 {
            let url = cluster.url.clone();
            let executor = ["executor", "--scheduler", &url, "--threads", "1", "--work-directory", &work];
            cluster.add(program, &executor, "listens on ")?;
        }
        Ok(cluster)
    }

    /// Starts a member; returns the word behind `mark` in what it reports.
    fn add(&mut self, program: &str, arguments: &[&str], mark: &str) -> Result<String, String> {
        let failed = |error: std::io::Error| format!("{program} {arguments:?}: {error}");
        let mut member =
            Command::new(program).args(arguments).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let mut reports = BufReader::new(member.stderr.take().ok_or("no standard error")?);
        self.members.push(member);
        let mut line = String::new();
        while reports.read_line(&mut line).map_err(failed)? > 0 {
            if let Some((_, rest)) = line.split_once(mark) {
                let word = rest.split_whitespace().next().unwrap_or_default().to_owned();
                // Later reports must not fill the pipe.
                std::thread::spawn(move || std::io::copy(&mut reports, &mut std::io::sink()));
                return Ok(word);
            }
            line.clear();
        }
        Err(format!("{program} {arguments:?} has ended"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

fn asked(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Bytes of the Parquet files of a table.
fn bytes_below(directory: &Path) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut bytes = 0;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.file_name().is_some_and(|name| name == "_delta_log") {
            continue;
        }
        bytes += if path.is_dir() { bytes_below(&path)? } else { path.metadata().map_err(failed)?.len() };
    }
    Ok(bytes)
}
