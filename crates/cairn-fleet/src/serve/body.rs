//! The bodies of requests, within limits: of each body, and of all that are held at once.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use flate2::read::MultiGzDecoder;
use futures::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::refusal::Refusal;

/// Bytes of a body as it comes; 16 MiB: a block of 100,000 stacks has 4 MiB.
pub(crate) const MOST_SENT_BYTES: u64 = 16 << 20;
/// Bytes of a body behind its compression, and of what is compressed inside of it.
pub(crate) const MOST_BYTES: u64 = 64 << 20;
/// Time for the next part of a body.
const PATIENCE: Duration = Duration::from_secs(30);

/// Memory for all requests that wait, in units of a kibibyte.
#[derive(Clone)]
pub(crate) struct Room(Arc<Semaphore>);

/// Memory that a request holds until it is answered.
pub(crate) struct Held {
    room: Room,
    permit: Option<OwnedSemaphorePermit>,
}

impl Room {
    const UNIT: u64 = 1 << 10;

    pub(crate) fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes / Self::UNIT).unwrap_or(usize::MAX);
        Self(Arc::new(Semaphore::new(units.clamp(1, Semaphore::MAX_PERMITS))))
    }

    pub(crate) fn held(&self) -> Held {
        Held { room: self.clone(), permit: None }
    }
}

impl Held {
    /// Holds this number of bytes from now on: more or fewer than before.
    pub(crate) fn set(&mut self, bytes: u64) -> Result<(), Refusal> {
        let wanted = usize::try_from(bytes.div_ceil(Room::UNIT)).unwrap_or(usize::MAX);
        let has = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if wanted <= has {
            drop(self.permit.as_mut().and_then(|permit| permit.split(has - wanted)));
            return Ok(());
        }
        let more = u32::try_from(wanted - has).map_err(|_| Refusal::full())?;
        let more = Arc::clone(&self.room.0).try_acquire_many_owned(more).map_err(|_| Refusal::full())?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }
}

/// Reads a body as it comes.
async fn sent(headers: &HeaderMap, body: Body, most_bytes: u64, held: &mut Held) -> Result<Vec<u8>, Refusal> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if let Some(bytes) = announced.filter(|&bytes| bytes > most_bytes) {
        return Err(Refusal::too_large("bytes of the body", bytes, most_bytes));
    }
    let mut bytes = Vec::new();
    let mut parts = body.into_data_stream();
    loop {
        let part = match timeout(PATIENCE, parts.next()).await {
            Ok(Some(Ok(part))) => part,
            Ok(None) => return Ok(bytes),
            Ok(Some(Err(error))) => return Err(Refusal::bad(format!("the body breaks off: {error}"))),
            Err(_) => {
                return Err(Refusal::slow(format!(
                    "nothing of the body has come for {} seconds",
                    PATIENCE.as_secs()
                )));
            }
        };
        let length = bytes.len() as u64 + part.len() as u64;
        if length > most_bytes {
            return Err(Refusal::too_large("bytes of the body", length, most_bytes));
        }
        held.set(length)?;
        bytes.extend_from_slice(&part);
    }
}

/// Unpacks a body in memory that is held.
fn unpacked(packed: &[u8], most_bytes: u64, held: &mut Held) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let mut decoder = MultiGzDecoder::new(packed);
    let mut part = vec![0; 64 << 10];
    loop {
        let read = decoder.read(&mut part).map_err(|error| {
            Refusal::bad(format!("the body's gzip is broken behind {} bytes: {error}", bytes.len()))
        })?;
        let length = (bytes.len() + read) as u64;
        if length > most_bytes {
            return Err(Refusal::too_large("bytes of the body behind its compression", length, most_bytes));
        }
        held.set(packed.len() as u64 + length)?;
        match part.get(..read) {
            None | Some([]) => return Ok(bytes),
            Some(read) => bytes.extend_from_slice(read),
        }
    }
}

/// Reads a body of at most `most_bytes`, and undoes its compression.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    most_bytes: u64,
    held: &mut Held,
    parsers: &Arc<Semaphore>,
) -> Result<Vec<u8>, Refusal> {
    let is_packed = match headers.get(CONTENT_ENCODING).map(|encoding| encoding.as_bytes()) {
        None | Some(b"" | b"identity") => false,
        Some(b"gzip") => true,
        Some(other) => {
            return Err(Refusal::form(format!(
                "Content-Encoding: {}: gzip and identity are read here",
                String::from_utf8_lossy(other)
            )));
        }
    };
    let bytes = sent(headers, body, most_bytes.min(MOST_SENT_BYTES), held).await?;
    if !is_packed {
        return Ok(bytes);
    }
    let mut lent = Held { room: held.room.clone(), permit: held.permit.take() };
    let (bytes, lent) = apart(parsers, move || {
        let bytes = unpacked(&bytes, most_bytes, &mut lent)?;
        lent.set(bytes.len() as u64)?;
        Ok((bytes, lent))
    })
    .await?;
    held.permit = lent.permit;
    Ok(bytes)
}

/// Runs work that takes a processor for a while, no more of it at once than there are processors.
pub(crate) async fn apart<T: Send + 'static>(
    parsers: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let Ok(permit) = Arc::clone(parsers).acquire_owned().await else { return Err(Refusal::full()) };
    let result = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(permit);
        result
    });
    // A parser that panics has a defect; the next request is not concerned.
    result.await.unwrap_or_else(|error| Err(Refusal::wrong(format!("this body cannot be read: {error}"))))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn held_memory_is_bounded_and_comes_back() {
        let room = Room::new(10 << 10);
        let (mut first, mut second) = (room.held(), room.held());
        first.set(6 << 10).unwrap();
        assert_eq!(second.set(5 << 10), Err(Refusal::full()));
        second.set(4 << 10).unwrap();
        first.set(1).unwrap();
        second.set(9 << 10).unwrap();
        drop(second);
        first.set(10 << 10).unwrap();
    }

    #[test]
    fn bombs_stop_at_the_limit() {
        const LIMIT: u64 = 1 << 20;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(&vec![0; 4 << 20]).unwrap();
        let bomb = packer.finish().unwrap();
        assert!(bomb.len() < 10_000, "{}", bomb.len());
        let refusal = unpacked(&bomb, LIMIT, &mut Room::new(1 << 30).held()).unwrap_err();
        assert_eq!(refusal.status.as_u16(), 413, "{}", refusal.text);
        let refusal = unpacked(&bomb, LIMIT, &mut Room::new(1 << 19).held()).unwrap_err();
        assert_eq!(refusal, Refusal::full());
        let refusal = unpacked(&bomb[..1000], 8 * LIMIT, &mut Room::new(1 << 30).held()).unwrap_err();
        assert_eq!(refusal.status.as_u16(), 400, "{}", refusal.text);
    }
}
