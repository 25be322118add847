//! The served page's requests: who is let in, and what is answered.

#[path = "support/client.rs"]
mod client;
#[path = "support/programs.rs"]
mod programs;

use std::fs;
use std::path::{Path, PathBuf};

use cairn_web::view::{Shown, SourceRoot, View, ViewOptions};
use client::Server;

/// A directory that goes when its test is over.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-view-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Serves until the tests are over.
fn serve(shown: Shown, sources: &[&Path]) -> Server {
    let mut options = ViewOptions::new(shown);
    options.source.symbols = None;
    options.sources = sources.iter().map(|path| SourceRoot::new(path, None).unwrap()).collect();
    let view = View::bind(options).unwrap();
    let server = Server::at(&view.url());
    std::thread::spawn(move || view.run());
    server
}

#[test]
fn view_refuses_wrong_tokens_origins_and_hosts() {
    let directory = Directory::new("door");
    directory.write("ordinary.cairn", &programs::ordinary().bytes);
    let server = serve(Shown::Directory(directory.0.clone()), &[]);
    let token = server.token.clone();
    let page = format!("/{token}/");
    let list = "/api/1/recordings";
    let with_token = ("X-Cairn-Token", token.as_str());
    let host = server.address.to_string();
    let origin = format!("http://{host}");
    let upper = token.to_ascii_uppercase();
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], u16);
    let cases: &[Case<'_>] = &[
        (&page, &[], 200),
        (list, &[with_token], 200),
        (&format!("/{token}{list}"), &[], 200),
        (list, &[with_token, ("Origin", &origin)], 200),
        ("/", &[], 401),
        (list, &[], 401),
        (&format!("{list}?token={token}"), &[], 401),
        (list, &[("Cookie", &format!("token={token}"))], 401),
        (list, &[("X-Cairn-Token", "")], 403),
        (list, &[("X-Cairn-Token", &upper)], 403),
        (list, &[("X-Cairn-Token", &token[1..])], 403),
        ("/wrong/", &[], 403),
        (&format!("/wrong{list}"), &[], 403),
        (&page, &[("Host", "evil.example")], 403),
        (&page, &[("Host", "localhost")], 403),
        (&page, &[("Host", &format!("localhost:{}", server.address.port()))], 403),
        (&page, &[("Host", &format!("{host}.evil.example"))], 403),
        (&page, &[("Host", &host), ("Host", "evil.example")], 403),
        (list, &[with_token, ("Origin", "http://evil.example")], 403),
        (list, &[with_token, ("Origin", "null")], 403),
        (list, &[with_token, ("Sec-Fetch-Site", "cross-site")], 403),
        (list, &[with_token, ("Sec-Fetch-Site", "same-site")], 403),
    ];
    for (path, headers, status) in cases {
        let answer = server.ask("GET", path, headers, b"");
        assert_eq!(answer.status, *status, "{path} {headers:?}");
        // No answer is cached, or readable by another page.
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path} {headers:?}");
        }
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(answer.headers.iter().all(|(name, _)| !name.starts_with("access-control-")), "{path}");
        let body = String::from_utf8_lossy(&answer.body);
        assert!(*status == 200 || !body.contains(&token), "no refusal holds the token");
        assert!(*status == 200 || !body.contains("ordinary"), "{path}: {body}");
    }
}

#[test]
fn view_refuses_large_requests_and_answers_the_next() {
    let directory = Directory::new("limits");
    directory.write("ordinary.cairn", &programs::ordinary().bytes);
    let server = serve(Shown::Directory(directory.0.clone()), &[]);
    let token = ("X-Cairn-Token", server.token.as_str());
    let long = "x".repeat(40_000);
    assert_eq!(server.ask("GET", &format!("/api/1/recordings?{long}"), &[token], b"").status, 431);
    assert_eq!(server.ask("GET", "/api/1/recordings", &[token, ("X-Long", &long)], b"").status, 431);
    let many: Vec<(&str, &str)> = std::iter::repeat_n(("X-Many", "1"), 100).chain([token]).collect();
    assert_eq!(server.ask("GET", "/api/1/recordings", &many, b"").status, 431);
    assert_eq!(server.post("recordings/ordinary.cairn/mark", &[b'x'; 5000]).status, 413);
    assert_eq!(server.send(b"\0\0\0\0\r\n\r\n").status, 400);
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"] {
        assert_eq!(server.ask(method, "/api/1/recordings", &[token], b"").status, 405, "{method}");
    }
    for (path, status) in [
        ("recordings/%zz", 400),
        ("recordings/%ff", 400),
        ("recordings/nowhere", 404),
        ("recordings/..%2f..%2f..%2fetc%2fpasswd", 404),
        ("recordings/..%2f..%2f..%2fetc%2fpasswd/content", 404),
        ("recordings/../../../etc/passwd", 404),
        ("recordings/ordinary.cairn/start", 404),
        ("recordings/ordinary.cairn/content?known=x", 400),
        ("recordings/ordinary.cairn/content?known=1&known=2", 400),
        ("recordings/ordinary.cairn/content?from=5&to=4", 400),
        ("recordings/ordinary.cairn/content?size=9-1", 400),
        ("recordings/ordinary.cairn/content?size=x", 400),
        ("recordings/ordinary.cairn/content?below=!", 400),
        ("recordings/ordinary.cairn/content?below=zz", 404),
        ("recordings/ordinary.cairn/content?thread=nobody", 404),
        ("comparison", 400),
        ("comparison?before=ordinary.cairn", 400),
        ("comparison?before=ordinary.cairn&after=nowhere", 404),
        ("nothing", 404),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, status, "{path}: {}", String::from_utf8_lossy(&answer.body));
        assert!(answer.json()["error"].is_string(), "{path}");
    }
    assert_eq!(server.get("../2/recordings").status, 404);
    assert_eq!(server.get("recordings").status, 200);
}

#[test]
fn recordings_are_listed_and_their_content_is_that_of_the_page() {
    let directory = Directory::new("content");
    directory.write("ordinary.cairn", &programs::ordinary().bytes);
    directory.write("notes.txt", b"no recording");
    let server = serve(Shown::Directory(directory.0.clone()), &[]);
    let list = server.get("recordings").json();
    assert_eq!(list["api"], 1);
    let names: Vec<&str> =
        list["recordings"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["ordinary.cairn"]);
    // One that is made later is found.
    directory.write("later.cairn", &programs::hostile().bytes);
    assert_eq!(server.get("recordings/later.cairn").status, 200);
    assert_eq!(server.get("recordings").json()["recordings"].as_array().unwrap().len(), 2);

    let content = server.get("recordings/ordinary.cairn/content");
    assert_eq!((content.status, content.header("content-type")), (200, Some("application/octet-stream")));
    let version = content.header("cairn-version").unwrap().to_owned();
    let object = content.object();
    assert_eq!(object["schema"], cairn_web::PAGE_SCHEMA);
    assert_eq!(object["totals"]["allocations"], 2000);
    assert_eq!(server.get(&format!("recordings/ordinary.cairn/content?known={version}")).status, 204);
    let slices = server.get(&format!("recordings/ordinary.cairn/slices?version={version}"));
    assert_eq!((slices.status, slices.header("cairn-version")), (200, Some(version.as_str())));
    let places = object["columns"].as_object().unwrap();
    let last =
        places.values().filter(|place| place["part"] == 1).map(|place| place["at"].as_u64().unwrap()).max();
    assert!(slices.body.len() as u64 > last.unwrap());
    assert_eq!(server.get("recordings/ordinary.cairn/slices?version=999").status, 409);
    // Another file of the same name is another version.
    directory.write("ordinary.cairn", &programs::hostile().bytes);
    let other = server.get(&format!("recordings/ordinary.cairn/content?known={version}"));
    assert_eq!(other.status, 200);
    assert_ne!(other.header("cairn-version"), Some(version.as_str()));
}

#[test]
fn view_parts_equal_the_answers_of_the_recording() {
    let directory = Directory::new("parts");
    directory.write("ordinary.cairn", &programs::ordinary().bytes);
    let server = serve(Shown::Directory(directory.0.clone()), &[]);
    let totals = |words: &str| {
        let answer = server.get(&format!("recordings/ordinary.cairn/content?{words}"));
        assert_eq!(answer.status, 200, "{words}: {}", String::from_utf8_lossy(&answer.body));
        let object = answer.object();
        (
            object["totals"]["allocations"].as_u64().unwrap(),
            object["totals"]["allocated_bytes"].as_u64().unwrap(),
        )
    };
    assert_eq!(totals("thread=worker"), (400, 4_000_000));
    assert_eq!(totals("size=4096-4096"), (400, 400 * 4096));
    assert_eq!(totals("size=1-200&thread=main"), (1200, 400 * (200 + 48 + 16)));
    assert_eq!(totals("module=libwork"), (400, 4_000_000));
    assert_eq!(totals("to=1999999999&thread=worker"), (0, 0));
    let (half, _) = totals("from=3000000000");
    assert!((150..=250).contains(&half), "{half}");

    // Below a call: `load` is the second function of the program, and is called by the first one.
    let key = |name: &str, module: &str| {
        let units = [name, "\0", module].concat();
        let hash = units
            .encode_utf16()
            .fold(2_166_136_261_u32, |hash, unit| (hash ^ u32::from(unit)).wrapping_mul(16_777_619));
        in_base_36(hash ^ (hash >> 13))
    };
    let program = "/usr/bin/program";
    let path = [key("program+0x100", program), key("program+0x200", program)].join(".");
    assert_eq!(totals(&format!("below={path}")), (1600, 400 * (4096 + 200 + 48 + 16)));
    let inner = format!("{path}.{}", key("libparse.so.1+0x300", "/usr/lib/libparse.so.1"));
    assert_eq!(totals(&format!("below={inner}")), (1200, 400 * (200 + 48 + 16)));
}

fn in_base_36(mut number: u32) -> String {
    let mut digits = Vec::new();
    while number > 0 {
        digits.push(char::from_digit(number % 36, 36).unwrap());
        number /= 36;
    }
    digits.iter().rev().collect()
}

#[test]
fn two_recordings_are_compared_with_the_sums_of_each() {
    let directory = Directory::new("comparison");
    directory.write("before.cairn", &programs::ordinary().bytes);
    directory.write("after.cairn", &programs::hostile().bytes);
    let server = serve(Shown::Directory(directory.0.clone()), &[]);
    let sums = |words: &str| {
        let answer = server.get(&format!("comparison?{words}"));
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        let object = answer.object();
        assert_eq!(object["schema"], "cairn.comparison/1");
        // Each function has an owner, and each call the number of folded frames in front of it.
        let count = |name: &str| object["columns"][name]["count"].as_u64().unwrap();
        assert_eq!(count("function_owner"), count("function_name"));
        assert_eq!(count("function_short_name"), count("function_name"));
        assert_eq!(count("call_folded_frames"), count("call_depth"));
        assert!(object["folded_frames"].is_u64());
        let owners: Vec<&str> = object["owners"]
            .as_array()
            .unwrap()
            .iter()
            .map(|owner| owner["kind"].as_str().unwrap())
            .collect();
        assert_eq!(owners[0], "none");
        assert!(owners.len() > 1, "{owners:?}");
        let columns = 4 + u32::from_le_bytes(answer.body[..4].try_into().unwrap()) as usize;
        let sum = |name: &str| {
            let place = &object["columns"][name];
            let mut at = columns + place["at"].as_u64().unwrap() as usize;
            let mut sum = 0;
            for _ in 0..place["count"].as_u64().unwrap() {
                let mut shift = 0;
                loop {
                    let byte = answer.body[at];
                    at += 1;
                    sum += u64::from(byte & 0x7f) << shift;
                    shift += 7;
                    if byte < 0x80 {
                        break;
                    }
                }
            }
            sum
        };
        (sum("before_allocations"), sum("after_allocations"))
    };
    let of = |id: &str| {
        let object = server.get(&format!("recordings/{id}/content")).object();
        object["totals"]["allocations"].as_u64().unwrap()
    };
    let (before, after) = (of("before.cairn"), of("after.cairn"));
    assert_eq!(sums("before=before.cairn&after=after.cairn"), (before, after));
    assert_eq!(sums("before=after.cairn&after=before.cairn"), (after, before));
    assert_eq!(
        sums("before=before.cairn&after=before.cairn&before_thread=worker&after_size=16-16"),
        (400, 400)
    );
}

#[test]
fn view_sends_nothing_to_a_program_that_has_ended() {
    let directory = Directory::new("control");
    let made = programs::ordinary();
    let path = directory.write("ordinary.cairn", &made.bytes);
    let server = serve(Shown::Files(vec![path.clone()]), &[]);
    for wish in ["start", "stop"] {
        assert_eq!(server.post(&format!("recordings/ordinary.cairn/{wish}"), b"").status, 409);
    }
    assert_eq!(server.post("recordings/ordinary.cairn/mark", b"now").status, 409);
    assert_eq!(server.post("recordings/ordinary.cairn/mark", b"").status, 400);
    assert_eq!(server.post("recordings/ordinary.cairn/mark", &[b'x'; 1001]).status, 400);
    assert_eq!(server.post("recordings/nowhere/stop", b"").status, 404);
    assert_eq!(server.post("recordings/ordinary.cairn/end", b"").status, 404);
    assert!(fs::read(path).unwrap() == made.bytes);
}

#[test]
fn source_files_are_shown_below_given_directories_only() {
    let directory = Directory::new("source");
    let path = directory.write("ordinary.cairn", &programs::ordinary().bytes);
    fs::create_dir_all(directory.0.join("src")).unwrap();
    directory.write("src/load.c", b"void load(void);\n");
    directory.write("secret", b"secret");
    let root = directory.0.join("src");
    let without = serve(Shown::Files(vec![path.clone()]), &[]);
    let file = directory.0.join("src/load.c").display().to_string();
    assert_eq!(without.get(&format!("source?file={file}")).status, 403);
    let server = serve(Shown::Files(vec![path]), &[&root]);
    let shown = server.get(&format!("source?file={file}")).json();
    assert_eq!(shown["text"], "void load(void);\n");
    let secret = directory.0.join("secret").display().to_string();
    for name in [
        secret.as_str(),
        "../secret",
        "..%2fsecret",
        "src/../../secret",
        "/etc/passwd",
        "/proc/self/environ",
        "file:///etc/passwd",
        "%00/etc/passwd",
        "",
    ] {
        let answer = server.get(&format!("source?file={name}"));
        assert_eq!(answer.status, 404, "{name}");
        assert!(!String::from_utf8_lossy(&answer.body).contains("root:"), "{name}");
    }
    let climbing = format!("source?file={}/../secret", root.display());
    assert_eq!(server.get(&climbing).status, 404);
}

#[test]
fn view_shows_damaged_recordings_as_far_as_they_go() {
    let directory = Directory::new("damaged");
    let whole = programs::ordinary().bytes;
    directory.write("whole.cairn", &whole);
    directory.write("cut.cairn", &whole[..whole.len() / 2]);
    directory.write("header.cairn", &whole[..100]);
    let server = serve(Shown::Directory(directory.0.clone()), &[]);
    for id in ["cut.cairn", "header.cairn", "whole.cairn"] {
        let answer = server.get(&format!("recordings/{id}/content"));
        assert!(matches!(answer.status, 200 | 422), "{id}: {}", answer.status);
        if answer.status == 422 {
            assert!(answer.json()["error"].as_str().unwrap().contains(id));
        }
    }
    assert_eq!(server.get("recordings/whole.cairn/content").status, 200);
}
