//! Millions of damaged recordings, opened and read: each ends, without a panic, in bounded memory.
//!
//! Runs more inputs than a fuzzer can in the same time: the fuzz target also packs and compares,
//! and takes many times as long. The changes are bytes, whole words, and pieces copied, at random
//! places; checksums are made right again in every second packed one, so that what is behind them
//! is reached.

use std::time::{SystemTime, UNIX_EPOCH};

use cairn_format::recording::{CHUNK_HEADER_BYTES, ChunkHeader, Lane, MarkValue};
use cairn_recording::{Alloc, Events, Free, Mark, Recording, StackId, Wanted, pack};

use crate::recording::status_bytes;
use crate::spool::{Program, Random};

/// Adds up what is seen, so that all of it is looked at.
#[derive(Default)]
struct Sum {
    events: u64,
    stacks: u64,
    nanos: u64,
}

impl Sum {
    fn see(&mut self, nanos: u64, stack: StackId) {
        assert!(nanos >= self.nanos, "time went back");
        self.nanos = nanos;
        self.events += 1;
        self.stacks ^= u64::from(stack.number());
    }
}

impl Events for Sum {
    fn alloc(&mut self, event: &Alloc) {
        self.see(event.at.nanos, event.stack);
    }
    fn free(&mut self, event: &Free) {
        self.see(event.at.nanos, event.stack);
    }
    fn mark(&mut self, event: &Mark<'_>) {
        self.see(event.at.nanos, event.stack);
        self.stacks ^= event.text.len() as u64;
    }
}

/// Returns a small spool with every kind of record, cut after its last record, and its packed form.
fn samples(seed: u64) -> Result<[Vec<u8>; 2], String> {
    let mut random = Random(seed);
    let mut program = Program::new(2, 8);
    if seed.is_multiple_of(2) {
        program.spool.keep_tables_apart();
    }
    let stacks = program.spool.stacks(12);
    for _ in 0..80 {
        program.counter += random.below(3_000_000);
        let thread = 1 + random.below(2) as u32;
        let stack = stacks[random.below(12) as usize];
        let counter = program.counter;
        match random.below(5) {
            0 | 1 => drop(program.alloc(thread, 16 + random.below(100_000), stack)),
            2 if !program.live.is_empty() => {
                program.free(thread, random.below(program.live.len() as u64) as usize);
            }
            3 => program.spool.write(thread, Lane::Outer, counter, |sink| {
                sink.mark(counter, stack, 1, MarkValue::Float(1.5), b"text")
            }),
            _ => program.spool.write(thread, Lane::Nested, counter, |sink| {
                sink.mark(counter, stack, 0, MarkValue::Integer(-7), b"handler")
            }),
        }
    }
    let mut spool = program.finish();
    let used = spool.iter().rposition(|&byte| byte != 0).map_or(0, |last| (last + 8) & !7);
    spool.truncate(used);
    let recording = Recording::from_bytes(spool.clone()).map_err(|error| error.to_string())?;
    let mut packed = Vec::new();
    pack(&recording, &mut packed).map_err(|error| error.to_string())?;
    Ok([spool, packed])
}

/// Returns a place where something is: headers, control words, and the first kilobytes of blocks.
fn place(bytes: &[u8], random: &mut Random) -> usize {
    let any = random.below(bytes.len() as u64) as usize;
    let place =
        if bytes.len() < 65536 || random.below(8) == 0 { any } else { any / 65536 * 65536 + any % 1536 };
    place.min(bytes.len() - 1)
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(6) {
        if bytes.is_empty() {
            return;
        }
        let at = place(bytes, random);
        match random.below(8) {
            0..=2 => bytes[at] = random.next() as u8,
            3 => bytes[at] ^= 1 << random.below(8),
            4 => {
                let at = at & !7;
                let values =
                    [0, u64::MAX, 1 << 31, 1 << 32, (1 << 48) - 1, random.next(), random.below(1 << 20)];
                let value = values[random.below(7) as usize].to_le_bytes();
                let length = bytes.len().min(at + 8) - at;
                bytes[at..at + length].copy_from_slice(&value[..length]);
            }
            5 | 6 => {
                let from = place(bytes, random);
                let length = (1 + random.below(64) as usize).min(bytes.len() - at.max(from));
                bytes.copy_within(from..from + length, at);
            }
            _ => bytes.truncate(at),
        }
    }
}

fn repair_checks(bytes: &mut [u8]) {
    let mut offset = 64;
    while let Some(header) = bytes.get(offset..).and_then(ChunkHeader::read) {
        let body = offset + CHUNK_HEADER_BYTES;
        let Some(stored) = bytes.get(body..body + header.stored_bytes as usize) else { return };
        let header = ChunkHeader { check: crc32fast::hash(stored), ..header };
        bytes[offset..body].copy_from_slice(&header.to_bytes());
        offset = (body + header.stored_bytes as usize).next_multiple_of(8);
    }
}

/// Opens and reads one of them; true when it opened.
fn survives(bytes: Vec<u8>, window: Option<(u64, u64)>) -> bool {
    let opened = match window {
        None => Recording::from_bytes(bytes),
        Some(window) => Recording::from_bytes_window(bytes, |_| window),
    };
    let Ok(recording) = opened else { return false };
    let mut sum = Sum::default();
    recording.read(&Wanted::ALL, &mut sum).expect("memory can be read");
    for stack in recording.stacks().ids().take(64) {
        sum.stacks ^= recording.frames(stack).count() as u64;
    }
    std::hint::black_box((sum.events, sum.stacks));
    true
}

/// Repeats the check `thousands` thousand times, and prints its progress now and then.
pub(crate) fn run(thousands: u64) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
    let seed = now.as_nanos() as u64 | 1;
    println!("seed {seed}");
    let samples = (1..9).map(samples).collect::<Result<Vec<_>, _>>()?;
    let mut random = Random(seed);
    let mut opened = 0_u64;
    for thousand in 1..=thousands {
        for _ in 0..1000 {
            let is_packed = random.below(2) == 1;
            let mut bytes =
                samples[random.below(samples.len() as u64) as usize][usize::from(is_packed)].clone();
            mutate(&mut bytes, &mut random);
            if is_packed && random.below(2) == 0 {
                repair_checks(&mut bytes);
            }
            let since = random.below(1 << 27);
            let window = (random.below(4) == 0).then_some((since, since + random.below(1 << 26)));
            opened += u64::from(survives(bytes, window));
        }
        if thousand.is_multiple_of(100) || thousand == thousands {
            let peak = status_bytes("VmHWM:")? >> 20;
            println!("{thousand} thousand, {opened} of them opened, peak {peak} MiB");
        }
    }
    Ok(())
}
