//! Formats of other tools over HTTP: real files have their sums, hostile ones change nothing.

mod program;
mod support;

use std::path::Path;

use cairn_analysis::heap::{Scope, Sums};
use cairn_exchange::import::Imported;
use cairn_exchange::target::{Choice, MOST_BLOCKS, Rows};
use cairn_exchange::{Subject, Target, write};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value as Any};
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use serde_json::{Value, json};
use support::{Server, TOKEN, block, fixtures, now_ms, request, sql, store};

const PROTOBUF: &str = "application/x-protobuf";
const OTLP: &str = "/v1development/profiles";

fn go() -> Vec<u8> {
    std::fs::read(fixtures().join("exchange/go-heap.pb.gz")).unwrap()
}

/// A file as `cairn report` opens it, and its sums.
fn opened(name: &str) -> (Imported, Sums) {
    let heap = Imported::open(&fixtures().join("exchange").join(name)).unwrap();
    let sums = heap.read(&Scope::default()).unwrap().sums.totals;
    (heap, sums)
}

/// The file as an OTLP message, as `cairn export` writes it, of a process that says its name.
fn message(heap: &Imported, attributes: &[(&str, &str)]) -> ProfilesData {
    let subject = Subject { profile: heap.profile(), heap: None, marks: &[] };
    let choice = Choice { column: 0, rows: Rows::Stacks, most_blocks: MOST_BLOCKS, compression: None };
    let mut bytes = Vec::new();
    write(Target::Otlp, &subject, choice, &mut bytes).unwrap();
    let mut data = ProfilesData::decode(&bytes[..]).unwrap();
    let attributes = attributes.iter().map(|(key, value)| KeyValue {
        key: (*key).to_owned(),
        value: Some(AnyValue { value: Some(Any::StringValue((*value).to_owned())) }),
        ..KeyValue::default()
    });
    data.resource_profiles[0].resource =
        Some(Resource { attributes: attributes.collect(), ..Resource::default() });
    data
}

fn sums(directory: &Path, condition: &str) -> Value {
    let query = format!(
        "select sum(alloc_blocks) as n, sum(alloc_bytes) as bytes, sum(live_blocks) as live, \
         sum(live_bytes) as live_bytes from samples where {condition}"
    );
    sql(directory, &query).remove(0)
}

fn expected(sums: &Sums) -> Value {
    json!({
        "n": sums.allocations, "bytes": sums.allocated_bytes, "live": sums.live_blocks,
        "live_bytes": sums.live_bytes,
    })
}

#[test]
fn otlp_messages_have_the_sums_of_the_file() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let (heap, file) = opened("go-heap.pb.gz");
    let attributes = [
        ("service.name", "shop"),
        ("service.version", "2.1"),
        ("host.name", "host-7"),
        ("k8s.pod.name", "shop-0"),
    ];
    let data = message(&heap, &attributes);
    let bytes = data.encode_to_vec();
    for _ in 0..2 {
        let answer = server.send(OTLP, PROTOBUF, &bytes);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.head.contains(PROTOBUF), "{}", answer.head);
        let response = ExportProfilesServiceResponse::decode(&answer.body[..]).unwrap();
        assert_eq!(response.partial_success, None);
    }
    assert_eq!(sums(directory.path(), "service = 'shop'"), expected(&file));
    let process = sql(
        directory.path(),
        "select version, host, source, labels['k8s_pod_name'] as pod from process where service = 'shop'",
    );
    assert_eq!(process, [json!({"version": "2.1", "host": "host-7", "source": "OTLP", "pod": "shop-0"})]);
    // The names are those of the file.
    let names = sql(
        directory.path(),
        "select count(*) as n from (select unnest(lines) as line from frame) \
         where line['function'] = 'main.load'",
    );
    assert!(names[0]["n"].as_u64() > Some(0), "{names:?}");

    // Compressed, and of two resources: one has no heap.
    let mut two = data.clone();
    let mut other = data.resource_profiles[0].clone();
    other.scope_profiles[0].profiles.truncate(1);
    other.scope_profiles[0].profiles[0].sample_type = None;
    two.resource_profiles[0].resource.as_mut().unwrap().attributes[0].value =
        Some(AnyValue { value: Some(Any::StringValue("cart".to_owned())) });
    two.resource_profiles.push(other.clone());
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packer, &two.encode_to_vec()).unwrap();
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", &*bearer), ("content-type", PROTOBUF), ("content-encoding", "gzip")];
    let answer = request(server.address, "POST", OTLP, &headers, &packer.finish().unwrap()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let partial = ExportProfilesServiceResponse::decode(&answer.body[..]).unwrap().partial_success.unwrap();
    assert_eq!(partial.rejected_profiles, 1);
    assert!(partial.error_message.contains("resource_profiles[1]"), "{}", partial.error_message);
    assert_eq!(sums(directory.path(), "service = 'cart'"), expected(&file));
    // None with a heap: refused, with a status that clients print.
    two.resource_profiles.remove(0);
    let answer = server.send(OTLP, PROTOBUF, &two.encode_to_vec());
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert_eq!(answer.body[..2], [8, 3]);
    assert!(answer.text().contains("without heap data"), "{}", answer.text());
    assert_eq!(server.send(OTLP, "application/json", b"{}").status, 415);
}

#[test]
fn pushed_profiles_have_the_sums_of_the_file() {
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let (_, file) = opened("go-heap.pb.gz");
    let until = now_ms() / 1000;
    let query = |name: &str| {
        format!("/ingest?name={name}&from={}&until={until}&format=pprof&sampleRate=100", until - 10)
    };
    let raw = query("shop%7Bregion%3D%22eu%22%2Cversion%3D%223%22%2Chostname%3D%22h1%22%7D");
    for _ in 0..2 {
        let answer = server.send(&raw, "application/octet-stream", &go());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(sums(directory.path(), "service = 'shop' and region = 'eu'"), expected(&file));
    let slices = sql(directory.path(), "select distinct t_end, slice_ms, version, host from samples");
    assert_eq!(slices, [json!({"t_end": until * 1000, "slice_ms": 10_000, "version": "3", "host": "h1"})]);

    let form = [
        &b"--b0und\r\nContent-Disposition: form-data; name=\"profile\"; filename=\"profile.pprof\"\r\n\r\n"[..],
        &go(),
        b"\r\n--b0und\r\nContent-Disposition: form-data; name=\"sample_type_config\"; filename=\"c.json\"\r\n\r\n{}\r\n",
        b"--b0und--\r\n",
    ]
    .concat();
    let answer = server.send(&query("cart%7B%7D"), "multipart/form-data; boundary=b0und", &form);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(sums(directory.path(), "service = 'cart'"), expected(&file));

    // Other formats that cairn opens.
    let heaptrack = std::fs::read(fixtures().join("exchange/heaptrack-small.zst")).unwrap();
    let answer = server.send("/ingest?name=small", "application/octet-stream", &heaptrack);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(sums(directory.path(), "service = 'small'"), expected(&opened("heaptrack-small.zst").1));

    for (path, kind, body, status) in [
        ("/ingest?name=a&format=groups", "text/plain", &b"a;b 1\n"[..], 415),
        ("/ingest?name=a&format=pprof", "text/plain", b"a;b 1\n", 400),
        ("/ingest?format=pprof", "", &go(), 400),
        ("/ingest?name=a%7Bb&format=pprof", "", &go(), 400),
        ("/ingest?name=a&from=9&until=3", "", &go(), 422),
        ("/ingest?name=a&until=yesterday", "", &go(), 400),
        ("/ingest?name=a", "multipart/form-data; boundary=b0und", b"nothing", 400),
        ("/ingest?name=a", "multipart/form-data; boundary=b0und", &form[..form.len() / 2], 400),
        ("/ingest?name=a", "", &go()[..500], 400),
        ("/ingest?name=a", "", &vec![0; 9 << 20], 413),
    ] {
        let answer = server.send(path, kind, body);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(answer.text().len() > 10, "{path}");
    }
}

/// Changes some bytes.
fn mutated(bytes: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.usize(1..8) {
        let at = random.usize(..bytes.len());
        match random.u8(..4) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] ^= 1 << random.u8(..8),
            2 => bytes.truncate(at.max(1)),
            _ => {
                let part: Vec<u8> = (0..random.usize(1..20)).map(|_| random.u8(..)).collect();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

#[test]
fn hostile_bodies_change_nothing_and_the_server_goes_on() {
    const EACH: u64 = 120;
    const MOST_KIB: u64 = 2 << 20;
    let directory = store();
    let server = Server::start(directory.path(), &[]);
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&go()[..]), &mut unpacked).unwrap();
    let (heap, _) = opened("go-heap.pb.gz");
    let otlp = message(&heap, &[("service.name", "shop")]).encode_to_vec();
    let json = block("a", 1, 20, now_ms()).to_string().into_bytes();
    let ends = [400, 408, 409, 413, 415, 422, 200];
    std::thread::scope(|scope| {
        for (worker, path, kind, body) in [
            (1, "/ingest?name=a", "", &unpacked),
            (2, OTLP, PROTOBUF, &otlp),
            (3, "/v1/block", "application/json", &json),
        ] {
            let server = &server;
            scope.spawn(move || {
                for seed in 0..EACH {
                    let mut random = fastrand::Rng::with_seed(worker << 32 | seed);
                    let body = match seed % 8 {
                        0 => (0..random.usize(1..4000)).map(|_| random.u8(..)).collect(),
                        _ => mutated(body, &mut random),
                    };
                    let answer = server.send(path, kind, &body);
                    assert!(
                        ends.contains(&answer.status),
                        "{path} {seed}: {} {}",
                        answer.status,
                        answer.text()
                    );
                }
            });
        }
    });
    // Few bytes that promise much: entries without content, nested attributes, deep lists.
    let nested = (0..2000).fold(Vec::new(), |inner: Vec<u8>, _| {
        let mut outer = vec![0x2a];
        prost::encoding::encode_varint(inner.len() as u64, &mut outer);
        outer.extend(inner);
        outer
    });
    let mut labels = String::from(
        r#"{"version":1,"sender":"a","number":1,"process":{"service":"a","started":0,"labels":{"#,
    );
    (0..1_000_000).for_each(|label| labels += &format!("\"l{label}\":\"\","));
    labels += r#""l":""}},"slice":{"end":1,"length":1}}"#;
    let field = |tag: u8, content: &[u8]| {
        let mut bytes = vec![tag << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend(content);
        bytes
    };
    let empty = [0x12, 0].repeat(4 << 20);
    for (path, kind, body) in [
        ("/v1/block", "application/json", labels.into_bytes()),
        ("/v1/block", "application/json", "[".repeat(10 << 20).into_bytes()),
        (
            "/v1/block",
            "application/json",
            br#"{"version":1,"stacks":["#.iter().copied().chain(b"[],".repeat(5 << 20)).collect(),
        ),
        (OTLP, PROTOBUF, field(2, &empty[..8 << 20 >> 1])),
        (OTLP, PROTOBUF, field(2, &field(6, &nested))),
        (OTLP, PROTOBUF, field(1, &field(2, &empty[..1 << 20]))),
        ("/ingest?name=a", "", empty[..8 << 20].to_vec()),
        ("/ingest?name=a", "", [0x22, 0].repeat(4 << 20)),
    ] {
        let answer = server.send(path, kind, &body);
        // A message without profiles is taken, and has nothing to store.
        let is_ended = [200, 400, 413, 422].contains(&answer.status);
        assert!(is_ended, "{path} {}: {} {}", body.len(), answer.status, answer.text());
    }
    assert!(server.peak_kib() < MOST_KIB, "{} KiB", server.peak_kib());
    let answer = server.block(&block("after", 1, 3, now_ms()));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(sql(directory.path(), "select count(*) as n from samples where host = 'after'")[0]["n"], 3);
}
