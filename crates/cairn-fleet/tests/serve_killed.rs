//! A server that is killed at any moment while senders repeat each block until it is answered:
//! nothing that was answered is lost, and nothing is there twice.
//!
//! `CAIRN_KILL_RUNS=200` makes it long.

mod program;
mod support;

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use program::kill_runs;
use serde_json::json;
use support::{Server, TOKEN, block, done, now_ms, request, sql, store};

const SENDERS: usize = 3;
const ROWS: usize = 4;

#[test]
fn killed_servers_lose_and_double_nothing() {
    let runs = kill_runs(6);
    let directory = store();
    let mut random = fastrand::Rng::with_seed(runs.into());
    let now = now_ms();
    let (port, is_ending) = (AtomicU16::new(0), AtomicBool::new(false));
    let answered: Vec<i64> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (port, is_ending) = (&port, &is_ending);
                scope.spawn(move || {
                    let bearer = format!("Bearer {TOKEN}");
                    let headers = [("authorization", &*bearer), ("content-type", "application/json")];
                    let mut number = 1;
                    while !is_ending.load(Ordering::Relaxed) {
                        let body = block(&format!("host-{sender}"), number, ROWS, now).to_string();
                        let address = ([127, 0, 0, 1], port.load(Ordering::Relaxed)).into();
                        match request(address, "POST", "/v1/block", &headers, body.as_bytes()) {
                            Ok(answer) if answer.status == 200 => number += 1,
                            Ok(answer) if answer.status == 503 => {}
                            Ok(answer) => panic!("block {number}: {} {}", answer.status, answer.text()),
                            // The server is gone: the next one listens elsewhere.
                            Err(_) => std::thread::sleep(Duration::from_millis(10)),
                        }
                    }
                    number - 1
                })
            })
            .collect();
        for _ in 0..runs {
            let mut server = Server::start(directory.path(), &["--commit-every", "20ms"]);
            port.store(server.address.port(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(random.u64(0..900)));
            server.kill();
        }
        // The last one answers what is still repeated.
        let server = Server::start(directory.path(), &["--commit-every", "20ms"]);
        port.store(server.address.port(), Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(500));
        is_ending.store(true, Ordering::Relaxed);
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    assert!(answered.iter().sum::<i64>() > 0);
    for (sender, answered) in answered.iter().enumerate() {
        let query = format!(
            "select live_blocks as number, count(*) as n, sum(live_bytes) as bytes from samples \
             where host = 'host-{sender}' group by live_blocks order by live_blocks"
        );
        let rows = sql(directory.path(), &query);
        let expected: Vec<_> = (1..=*answered)
            .map(|number| json!({"number": number, "n": ROWS, "bytes": ROWS as i64 * 1000 * number + 6}))
            .collect();
        assert_eq!(rows, expected, "host-{sender}");
    }
    done(directory.path(), &["check", "store"]);
}
