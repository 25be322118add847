//! Blocks sent to `cairn fleet serve` over loopback: rows a second and core, commits included.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Hosts, each a connection's worth of senders.
const CONNECTIONS: usize = 4;
const HOSTS_OF_CONNECTION: usize = 50;
/// Blocks of a host: slices.
const SLICES: u64 = 8;
/// Samples of a block, and the stacks from which they are.
const SAMPLES: u64 = 250;
const STACKS: u64 = 5000;
const FRAMES: u64 = 16;
const TOKEN: &str = "token-of-the-benchmark";

/// The result: rows, and seconds.
pub(crate) struct Ingestion {
    pub(crate) rows: u64,
    pub(crate) wall_seconds: f64,
    pub(crate) processor_seconds: f64,
    pub(crate) peak_mib: f64,
}

/// Ends a server that is not ended otherwise.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(program: &str, directory: &Path) -> Result<Ingestion, String> {
    let store = directory.join("ingested").display().to_string();
    let token = directory.join("token").display().to_string();
    fs::write(&token, TOKEN).map_err(|error| format!("{token}: {error}"))?;
    let init = Command::new(program).args(["init", &store]).status().map_err(|error| error.to_string())?;
    if !init.success() {
        return Err(format!("{program} init: {init}"));
    }
    let options = ["--listen", "127.0.0.1:0", "--token-file", &token, "--commit-every", "1s"];
    let mut server = Command::new(program)
        .args(["serve", &store])
        .args(options)
        .stderr(Stdio::piped())
        .spawn()
        .map(Running)
        .map_err(|error| format!("{program}: {error}"))?;
    let mut line = String::new();
    let errors = server.0.stderr.take().ok_or("no output of the server")?;
    BufReader::new(errors).read_line(&mut line).map_err(|error| error.to_string())?;
    let address = line.trim().rsplit('/').next().unwrap_or_default().to_owned();
    // Requests are made before: only sending them is measured.
    let connections: Vec<Vec<Vec<String>>> = (0..CONNECTIONS)
        .map(|connection| {
            let host = |host: usize| (connection * HOSTS_OF_CONNECTION + host) as u64;
            (0..SLICES)
                .map(|slice| (0..HOSTS_OF_CONNECTION).map(|at| body(host(at), slice)).collect())
                .collect()
        })
        .collect();
    let start = Instant::now();
    let before = usage(&server.0)?;
    std::thread::scope(|scope| {
        let senders: Vec<_> = connections
            .iter()
            .flat_map(|slices| {
                // Each host waits for the answer before it sends its next block, and for no
                // other host.
                (0..HOSTS_OF_CONNECTION).map(move |host| slices.iter().map(move |blocks| &blocks[host]))
            })
            .map(|blocks| {
                let address = &address;
                scope.spawn(move || send(address, blocks))
            })
            .collect();
        senders.into_iter().try_for_each(|sender| sender.join().map_err(|_| "a sender panicked")?)
    })?;
    let wall_seconds = start.elapsed().as_secs_f64();
    let (processor_seconds, peak_mib) = usage(&server.0)?;
    let rows = SAMPLES * SLICES * (CONNECTIONS * HOSTS_OF_CONNECTION) as u64;
    Ok(Ingestion { rows, wall_seconds, processor_seconds: processor_seconds - before.0, peak_mib })
}

/// Sends blocks over one connection, each behind the answer to the one before.
fn send<'a>(address: &str, blocks: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{address}: {error}");
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    for block in blocks {
        let head = format!(
            "POST /v1/block HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            block.len()
        );
        stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(block.as_bytes()))
            .map_err(failed)?;
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        // The body is one line of JSON.
        while !answer.ends_with(b"}") {
            match stream.read(&mut part).map_err(failed)? {
                0 => return Err(format!("{address}: no answer")),
                read => answer.extend_from_slice(&part[..read]),
            }
        }
        if !answer.starts_with(b"HTTP/1.1 200") {
            return Err(String::from_utf8_lossy(&answer).into_owned());
        }
    }
    Ok(())
}

/// A block of a host, all of it made from its numbers.
fn body(host: u64, slice: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let end = now - (SLICES - slice) * 600_000;
    let service = host % 20;
    let build_id = format!("{:040x}", service + 1);
    let mut text = format!(
        "{{\"version\":1,\"sender\":\"host-{host}/1\",\"number\":{},\"process\":{{\"service\":\"service-{service}\",\
         \"version\":\"1.4\",\"host\":\"host-{host}\",\"build_id\":\"{build_id}\",\"started\":{}}},\
         \"slice\":{{\"end\":{end},\"length\":600000}},\
         \"modules\":[{{\"path\":\"/srv/app\",\"build_id\":\"{build_id}\"}}],\"stacks\":[",
        slice + 1,
        now - 86_400_000
    );
    for sample in 0..SAMPLES {
        let stack = (host * 7919 + sample * 104_729) % STACKS;
        text += if sample == 0 { "[" } else { ",[" };
        for frame in 0..FRAMES {
            let place = (stack * 31 + frame * frame * 17) % (STACKS * 4);
            let _ = write!(text, "{}[0,{}]", if frame == 0 { "" } else { "," }, 4096 + 16 * place);
        }
        text += "]";
    }
    text += "],\"samples\":[";
    for sample in 0..SAMPLES {
        let blocks = 10 + (host * 31 + sample * 17 + slice) % 1000;
        let bytes = blocks * (16 << (sample % 8));
        let _ = write!(
            text,
            "{}[{sample},{bytes},{blocks},{},{},{},{},{},{},{}]",
            if sample == 0 { "" } else { "," },
            bytes / 2,
            blocks / 2,
            bytes / 3,
            blocks / 3,
            blocks / 8,
            bytes + 512,
            blocks + 3
        );
    }
    text + "]}"
}

/// Processor seconds of a process, and its peak memory in MiB.
fn usage(child: &Child) -> Result<(f64, f64), String> {
    let read = |name: &str| {
        let path = format!("/proc/{}/{name}", child.id());
        fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
    };
    // Times come behind the name in brackets, in hundredths of a second.
    let stat = read("stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    let status = read("status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let peak_kib: f64 = peak.trim().trim_end_matches(" kB").parse().unwrap_or(0.0);
    Ok(((ticks(11) + ticks(12)) / 100.0, peak_kib / 1024.0))
}
