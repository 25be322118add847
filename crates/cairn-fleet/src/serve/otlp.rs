//! OpenTelemetry's profiles: `POST /v1development/profiles`, as protocol buffers.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use cairn_exchange::import::{Imported, ResourceHeap};
use cairn_store::{Block, Id, now_ms};

use super::body;
use super::foreign::{KnownLabel, MOST_PROFILE_BYTES, Origin, labels_of};
use super::labels;
use super::queue::Queue;
use super::refusal::Refusal;

const PROTOBUF: &str = "application/x-protobuf";
/// Resources of a message.
const MOST_RESOURCES: usize = 1000;

/// Blocks of a message, and the resources without a heap.
struct Parsed {
    blocks: Vec<Block>,
    refused: Vec<Refusal>,
}

/// Takes a message.
pub(crate) async fn take(State(queue): State<Queue>, request: Request) -> Response {
    match taken(&queue, request).await {
        Ok(refused) => ([(CONTENT_TYPE, PROTOBUF)], response(&refused)).into_response(),
        Err(refusal) => refusal.with_body(PROTOBUF, status(&refusal)),
    }
}

async fn taken(queue: &Queue, request: Request) -> Result<Vec<Refusal>, Refusal> {
    let (head, sent) = request.into_parts();
    labels::check_kind(&head.headers, &[PROTOBUF, "application/protobuf"])?;
    let mut held = queue.held();
    let bytes = body::read(&head.headers, sent, MOST_PROFILE_BYTES, &mut held, &queue.parsers).await?;
    let received_ms = now_ms();
    let Parsed { blocks, refused } = body::apart(&queue.parsers, move || parse(&bytes, received_ms)).await?;
    match refused.first() {
        // Nothing to store, and a reason.
        Some(refusal) if blocks.is_empty() => return Err(refusal.clone()),
        _ => {}
    }
    queue.store(blocks, held).await?;
    Ok(refused)
}

fn parse(bytes: &[u8], received_ms: i64) -> Result<Parsed, Refusal> {
    let heaps = Imported::from_otlp(bytes).map_err(|error| Refusal::bad(error.to_string()))?;
    if heaps.len() > MOST_RESOURCES {
        return Err(Refusal::too_large("resources", heaps.len() as u64, MOST_RESOURCES as u64));
    }
    let message = Id::of_content([bytes]);
    let mut parsed = Parsed { blocks: Vec::new(), refused: Vec::new() };
    for (number, ResourceHeap { attributes, heap, .. }) in heaps.into_iter().enumerate() {
        let content = Id::of_content([&message.bytes()[..], &number.to_le_bytes()]);
        let process = if attributes.is_empty() { content } else { process_of(&attributes) };
        let mut labels = labels_of(attributes, known);
        labels.service.get_or_insert_with(|| "unknown_service".to_owned());
        let origin = Origin { interface: "otlp", labels, process, content, slice: None, received_ms };
        match origin.block(heap) {
            Ok(block) => parsed.blocks.push(block),
            Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
                parsed.refused.push(Refusal {
                    text: format!("resource_profiles[{number}]: {}", refusal.text),
                    ..refusal
                });
            }
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(parsed)
}

/// A process is what its attributes say: the service, the instance, the machine.
fn process_of(attributes: &BTreeMap<String, String>) -> Id {
    let texts = attributes.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]);
    Id::of_content([&b"otlp"[..]].into_iter().chain(texts))
}

fn known(name: &str) -> Option<KnownLabel> {
    match name {
        "service.name" => Some(KnownLabel::Service),
        "service.version" => Some(KnownLabel::Version),
        "host.name" => Some(KnownLabel::Host),
        _ => None,
    }
}

/// An `ExportProfilesServiceResponse`: empty when all was taken, else how many were not, and why.
fn response(refused: &[Refusal]) -> Vec<u8> {
    let Some(first) = refused.first() else { return Vec::new() };
    let mut partial = vec![1 << 3];
    varint(refused.len() as u64, &mut partial);
    text(2, &first.text, &mut partial);
    let mut bytes = Vec::new();
    field(1, &partial, &mut bytes);
    bytes
}

/// A `google.rpc.Status`, with which OTLP answers errors.
fn status(refusal: &Refusal) -> Vec<u8> {
    const INVALID_ARGUMENT: u8 = 3;
    const RESOURCE_EXHAUSTED: u8 = 8;
    const UNAVAILABLE: u8 = 14;
    let code = match refusal.status {
        StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE => RESOURCE_EXHAUSTED,
        _ => INVALID_ARGUMENT,
    };
    let mut bytes = vec![1 << 3, code];
    text(2, &refusal.text, &mut bytes);
    bytes
}

fn text(tag: u8, text: &str, bytes: &mut Vec<u8>) {
    field(tag, text.as_bytes(), bytes);
}

fn field(tag: u8, content: &[u8], bytes: &mut Vec<u8>) {
    bytes.push(tag << 3 | 2);
    varint(content.len() as u64, bytes);
    bytes.extend_from_slice(content);
}

fn varint(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
