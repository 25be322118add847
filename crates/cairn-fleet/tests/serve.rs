//! A real server on a real socket: what it takes, what it refuses, and what is in the store then.

mod program;
mod support;

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::{DAY_MS, Server, TOKEN, block, done, fixtures, now_ms, request, run, samples, sql, store};

const ROUTES: [(&str, &str); 6] = [
    ("POST", "/v1/block"),
    ("POST", "/v1development/profiles"),
    ("POST", "/ingest?name=web"),
    ("GET", "/v1/block"),
    ("GET", "/"),
    ("POST", "/health"),
];

#[test]
fn every_route_wants_the_token() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let health = request(server.address, "GET", "/health", &[], b"").unwrap();
    assert_eq!(health.status, 200);
    for (method, path) in ROUTES {
        for token in ["", "Bearer ", "Bearer 0123456789abcdef-of-test", &format!("Basic {TOKEN}"), TOKEN] {
            let headers: &[(&str, &str)] = if token.is_empty() { &[] } else { &[("authorization", token)] };
            let answer = request(server.address, method, path, headers, b"{}").unwrap();
            assert_eq!(answer.status, 401, "{method} {path} {token:?}: {}", answer.text());
            assert!(answer.head.to_ascii_lowercase().contains("www-authenticate: bearer"), "{}", answer.head);
        }
    }
    let with_token = [("authorization", &*format!("Bearer {TOKEN}"))];
    assert_eq!(request(server.address, "GET", "/nothing", &with_token, b"").unwrap().status, 404);
    assert_eq!(request(server.address, "GET", "/v1/block", &with_token, b"").unwrap().status, 405);
}

#[test]
fn token_is_made_and_shown_once() {
    let directory = store();
    let server = Server::start_with(directory.path(), &["--commit-every", "10ms"]);
    let log = server.log.lock().unwrap().clone();
    let token = log.lines().find_map(|line| line.split_once("once: ")).unwrap().1.to_owned();
    assert_eq!(token.len(), 64, "{log}");
    let headers = [("authorization", &*format!("Bearer {token}")), ("content-type", "application/json")];
    let body = block("a", 1, 3, now_ms()).to_string();
    let answer = request(server.address, "POST", "/v1/block", &headers, body.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn address_that_others_reach_needs_tls() {
    let directory = store();
    let refused = |options: &[&str], text: &str| {
        let output = run(directory.path(), &[&["serve", "store"], options].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {errors}");
        assert!(errors.contains(text), "{options:?}: {errors}");
    };
    refused(&["--listen", "0.0.0.0:0"], "--plain");
    refused(&["--listen", "[::]:0"], "--tls-certificate");
    refused(&["--tls-key", "key.pem"], "--tls-certificate");
    refused(&["--commit-every", "1h"], "at most 300 s");
    std::fs::write(directory.path().join("short"), "short").unwrap();
    for token in ["short", "absent"] {
        let output = run(directory.path(), &["serve", "store", "--token-file", token]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn blocks_are_stored_once_and_in_order() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let now = now_ms();
    let gap = server.block(&block("a", 2, 3, now));
    assert_eq!((gap.status, gap.json()["expected"].as_i64()), (409, Some(1)), "{}", gap.text());
    for (number, result) in
        [(1, "stored"), (1, "duplicate"), (2, "stored"), (1, "duplicate"), (2, "duplicate")]
    {
        let answer = server.block(&block("a", number, 3, now));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["result"], result, "{number}");
    }
    let gap = server.block(&block("a", 4, 3, now));
    assert_eq!((gap.status, gap.json()["expected"].as_i64()), (409, Some(3)));
    let mut server = server;
    server.terminate();
    assert!(server.wait().success());
    // Another server goes on where this one ended.
    let server = Server::start(directory.path(), &[]);
    assert_eq!(server.block(&block("a", 2, 3, now)).json()["result"], "duplicate");
    assert_eq!(server.block(&block("a", 3, 3, now)).json()["result"], "stored");
    let rows = sql(
        directory.path(),
        "select count(*) as n, sum(live_bytes) as bytes, count(distinct process) as processes, \
         max(host) as host, max(region) as region from samples",
    );
    assert_eq!(rows[0], json!({"n": 9, "bytes": 18_009, "processes": 1, "host": "a", "region": "eu"}));
    let senders = sql(directory.path(), "select sender, number, rows from block order by number");
    assert_eq!(senders.len(), 3);
    assert_eq!(senders[0], json!({"sender": "process:a", "number": 1, "rows": 3}));
    let stacks = sql(directory.path(), "select count(*) as n from stack");
    assert_eq!(stacks[0]["n"], 3);
}

#[test]
fn compressed_blocks_and_http_2_connections_are_taken() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let body = packed(block("a", 1, 3, now_ms()).to_string().as_bytes());
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        ("authorization", &*bearer),
        ("content-type", "application/json; charset=utf-8"),
        ("content-encoding", "gzip"),
    ];
    let answer = request(server.address, "POST", "/v1/block", &headers, &body).unwrap();
    assert_eq!((answer.status, answer.json()["result"].as_str()), (200, Some("stored")), "{}", answer.text());
    // The first bytes of HTTP/2, with an empty frame of settings: the server answers with its own.
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut frame = [0; 9];
    std::io::Read::read_exact(&mut stream, &mut frame).unwrap();
    assert_eq!(frame[3], 4, "{frame:?}");
}

#[test]
fn answers_say_why_they_may_be_wrong() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let now = now_ms();
    let notes = |arguments: &[&str]| {
        let output = run(directory.path(), arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let send = |block: Value| assert_eq!(server.block(&block).json()["result"], "stored");
    send(block("complete", 1, 3, now));
    assert_eq!(notes(&["top", "store"]), "");
    let mut lossy = block("lossy", 1, 3, now);
    lossy["process"]["remarks"] = json!("5 events were lost");
    send(lossy);
    let mut sampled = block("sampled", 1, 3, now);
    sampled["process"]["sample_bytes"] = json!(524_288);
    send(sampled);
    // A day ahead of the server.
    send(block("ahead", 1, 3, now + 2 * DAY_MS));
    for question in
        [&["top", "store"][..], &["leaks", "store"], &["flame", "store", "--force", "-o", "all.svg"]]
    {
        let notes = notes(question);
        assert!(notes.contains("1 process of the selection lost something"), "{question:?}: {notes}");
        assert!(notes.contains("lossy, says: 5 events were lost"), "{question:?}: {notes}");
        assert!(notes.contains("1 process of the selection recorded samples"), "{question:?}: {notes}");
        assert!(notes.contains("1 process of the selection had a wrong clock"), "{question:?}: {notes}");
    }
    // Those that a question is not about change nothing of its answer.
    assert_eq!(notes(&["top", "store", "--where", "host = 'complete'"]), "");
    let sampled = notes(&["top", "store", "--where", "host = 'sampled' and region = 'eu'"]);
    assert!(sampled.contains("samples") && !sampled.contains("lost"), "{sampled}");
    assert!(notes(&["top", "store", "--where", "host = 'none'"]).contains("no rows"));
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn wrong_blocks_are_refused_with_the_reason() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let now = now_ms();
    let good = || block("a", 1, 2, now);
    let changed = |path: &str, value: Value| {
        let mut block = good();
        *block.pointer_mut(path).unwrap() = value;
        block
    };
    let long = "x".repeat(5000);
    let labels: serde_json::Map<String, Value> = (0..65).map(|key| (format!("k{key}"), json!("v"))).collect();
    let deep_stack: Vec<Value> = (0..1025).map(|offset| json!([0, offset])).collect();
    let many: Vec<Value> = (0..500_001).map(|_| json!([0, 0, 0, 0, 0, 0, 0, 0, 0, 0])).collect();
    for (block, status, text) in [
        (changed("/version", json!(2)), 422, "version: 2"),
        (changed("/sender", json!("")), 422, "sender"),
        (changed("/sender", json!(long)), 413, "4096"),
        (changed("/sender", json!("a\u{1b}[2J")), 422, "control"),
        (changed("/number", json!(0)), 422, "number"),
        (changed("/number", json!("1")), 422, "string \"1\""),
        (changed("/process/service", json!("")), 422, "service"),
        (changed("/process/build_id", json!("0g")), 422, "hexadecimal"),
        (changed("/process/labels", json!({"Region": "eu"})), 422, "Region"),
        (changed("/process/labels", Value::Object(labels)), 413, "64"),
        (changed("/slice/end", json!(-1)), 422, "slice.end"),
        (changed("/slice/length", json!(0)), 422, "slice.length"),
        (changed("/stacks/0/0/0", json!(2)), 422, "module 2"),
        (changed("/stacks/0", json!(deep_stack)), 413, "1024"),
        (changed("/samples/0/0", json!(2)), 422, "stack 2"),
        (changed("/samples/1/3", json!(-1)), 422, "samples[1]"),
        (changed("/samples/1/3", json!(1.5)), 422, "1.5"),
        (changed("/samples/1", json!([0, 1])), 422, "nine counters"),
        (changed("/samples", json!(many)), 413, "500000"),
        (changed("/process", json!({"service": "web", "started": 0, "more": 1})), 422, "more"),
        (json!([]), 422, "block"),
    ] {
        let answer = server.block(&block);
        assert_eq!(answer.status, status, "{text}: {}", answer.text());
        let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains(text), "{text}: {error}");
    }
    let bearer = format!("Bearer {TOKEN}");
    let answer = |headers: &[(&str, &str)], body: &[u8]| {
        let headers = [&[("authorization", &*bearer)], headers].concat();
        request(server.address, "POST", "/v1/block", &headers, body).unwrap()
    };
    let json = ("content-type", "application/json");
    let text = good().to_string();
    for (headers, body, status) in [
        (&[json][..], &b"{"[..], 400),
        (&[json], b"", 400),
        (&[json], "[".repeat(1 << 20).as_bytes(), 422),
        (&[json], format!("{{\"stacks\":{}", "[".repeat(1 << 20)).as_bytes(), 422),
        (&[json], &text.as_bytes()[..text.len() / 2], 400),
        (&[], text.as_bytes(), 415),
        (&[("content-type", "text/plain")], text.as_bytes(), 415),
        (&[json, ("content-encoding", "br")], text.as_bytes(), 415),
        (&[json, ("content-encoding", "gzip")], text.as_bytes(), 400),
        (&[json, ("content-encoding", "gzip")], &packed(text.as_bytes())[..50], 400),
        (&[json], &vec![b' '; 17 << 20], 413),
        (&[json, ("content-encoding", "gzip")], &packed(&vec![b' '; 1 << 20]).repeat(65), 413),
    ] {
        let found = answer(headers, body);
        assert_eq!(found.status, status, "{headers:?} {}: {}", body.len(), found.text());
    }
    assert_eq!(sql(directory.path(), "select count(*) as n from block")[0]["n"], 0);
    assert_eq!(server.block(&good()).json()["result"], "stored");
}

#[test]
fn full_queue_is_refused_and_empties() {
    let directory = store();
    // Room for one block and a half, and a commit that waits for more.
    let server = Server::start(directory.path(), &["--queue-bytes", "64K", "--commit-every", "3s"]);
    let now = now_ms();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.block(&block("a", 1, 100, now)));
        std::thread::sleep(Duration::from_millis(700));
        let full = server.block(&block("b", 1, 100, now));
        assert_eq!(full.status, 429, "{}", full.text());
        assert!(full.head.to_ascii_lowercase().contains("retry-after: 5"), "{}", full.head);
        assert_eq!(first.join().unwrap().status, 200);
    });
    assert_eq!(server.block(&block("b", 1, 100, now)).status, 200);
}

#[test]
fn end_of_the_server_commits_what_was_taken() {
    let directory = store();
    let mut server = Server::start(directory.path(), &["--commit-every", "300s"]);
    let now = now_ms();
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        let waiting = [
            scope.spawn(|| server.block(&block("a", 1, 5, now))),
            scope.spawn(|| server.block(&block("b", 1, 5, now))),
        ];
        std::thread::sleep(Duration::from_millis(800));
        server.terminate();
        for waiting in waiting {
            let answer = waiting.join().unwrap();
            assert_eq!((answer.status, answer.json()["result"].as_str()), (200, Some("stored")));
        }
    });
    assert!(server.wait().success());
    assert!(started.elapsed() < Duration::from_secs(120));
    assert_eq!(sql(directory.path(), "select count(*) as n from sample")[0]["n"], 10);
}

#[test]
fn failed_commits_promise_nothing() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let now = now_ms();
    assert_eq!(server.block(&block("a", 1, 2, now)).status, 200);
    // The table of samples is gone for a while.
    let (table, aside) = (directory.path().join("store/sample"), directory.path().join("aside"));
    std::fs::rename(&table, &aside).unwrap();
    let failed = server.block(&block("a", 2, 2, now));
    assert_eq!(failed.status, 503, "{}", failed.text());
    let _ = std::fs::remove_dir_all(&table);
    std::fs::rename(&aside, &table).unwrap();
    assert_eq!(server.block(&block("a", 2, 2, now)).json()["result"], "stored");
    assert_eq!(sql(directory.path(), "select count(*) as n from sample")[0]["n"], 4);
}

#[test]
fn wrong_clocks_are_corrected_and_marked() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    const HOUR: i64 = 3_600_000;
    let before = now_ms();
    for (sender, ahead, is_said) in [
        ("right", 0, true),
        ("fast", HOUR, true),
        ("slow", -HOUR, true),
        ("future", HOUR, false),
        ("unset", -before, false),
    ] {
        let clock = now_ms() + ahead;
        let mut block = block(sender, 1, 1, clock);
        block["process"]["started"] = json!((clock - HOUR).max(0));
        if is_said {
            block["sent"] = json!(clock);
        }
        assert_eq!(server.block(&block).status, 200, "{sender}");
    }
    let after = now_ms();
    let rows = sql(
        directory.path(),
        "select p.host as host, s.t_end as t_end, p.started as started, p.clock as clock, \
         p.clock_offset_ms as ahead from sample s join process p on p.process = s.process order by host",
    );
    for (row, (host, clock, ahead)) in rows.iter().zip([
        ("fast", "receipt", HOUR),
        ("future", "receipt", HOUR),
        ("right", "sender", 0),
        ("slow", "receipt", -HOUR),
        ("unset", "receipt", -before),
    ]) {
        assert_eq!((row["host"].as_str(), row["clock"].as_str()), (Some(host), Some(clock)), "{row}");
        let end = row["t_end"].as_i64().unwrap();
        assert!((before - 1000..=after + 1000).contains(&end), "{row} {before} {after}");
        let found = row["ahead"].as_i64().unwrap();
        assert!((found - ahead).abs() < 60_000, "{row}");
    }
    assert_eq!(rows.len(), 5);
}

/// Blocks of several senders, each two to five times, each sender's in order and all in any.
#[test]
fn repeated_and_interleaved_blocks_have_the_same_sums() {
    const SENDERS: usize = 5;
    const BLOCKS: i64 = 4;
    let now = now_ms();
    let in_order = store();
    let server = Server::start(in_order.path(), &[]);
    // Slices up to seven days late, and not in order.
    let end = |number: i64| now - (number * 5 % 8) * DAY_MS;
    let name = |sender: usize| format!("host-{sender}");
    for sender in 0..SENDERS {
        for number in 1..=BLOCKS {
            assert_eq!(server.block(&block(&name(sender), number, 8, end(number))).status, 200);
        }
    }
    let expected = samples(in_order.path());
    assert_eq!(expected.lines().count(), SENDERS * BLOCKS as usize * 8 + 1);

    let directory = store();
    let server = Server::start(directory.path(), &["--commit-every", "40ms"]);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(worker);
                let mut next = [1; SENDERS];
                while next.iter().any(|&number| number <= BLOCKS) {
                    let sender = random.usize(..SENDERS);
                    let number = random.i64(1..=next[sender].min(BLOCKS));
                    let answer = server.block(&block(&name(sender), number, 8, end(number)));
                    match answer.status {
                        200 => next[sender] = next[sender].max(number + 1),
                        other => panic!("{other} {}", answer.text()),
                    }
                }
            });
        }
        // Files are added and merged meanwhile.
        scope.spawn(|| {
            let file = fixtures().join("exchange/heaptrack-small.zst").display().to_string();
            done(directory.path(), &["add", "store", &file, "--label", "service=file"]);
            let _ = run(directory.path(), &["compact", "store"]);
        });
    });
    let found = samples(directory.path());
    let of_senders: String =
        found.lines().filter(|line| !line.contains(",,")).map(|line| format!("{line}\n")).collect();
    assert_eq!(of_senders, expected);
    // Questions have the same answers, byte for byte.
    for question in [
        &["leaks", "store", "--where", "service = 'web'"][..],
        &["top", "store", "--where", "service = 'web'"],
    ] {
        assert_eq!(done(directory.path(), question), done(in_order.path(), question));
    }
    // Compaction afterwards changes nothing.
    done(directory.path(), &["compact", "store"]);
    assert_eq!(samples(directory.path()), found);
    check(directory.path());
}

fn check(directory: &Path) {
    done(directory, &["check", "store"]);
}
