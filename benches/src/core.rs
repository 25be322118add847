//! `cargo xtask bench core CAIRN`: how fast blocks are found in a memory image, how long a whole
//! answer takes, and how many blocks are found where none are.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use cairn_format::AbsoluteAddress;
use cairn_memory::heap::{Annotated, BlockLayout, FindOptions};
use cairn_memory::image::{Image, Machine, OpenOptions, RawFile};
use cairn_wire::heapblock::{
    ANCHOR_BYTES, Anchor, ByteOrder, Header, StackReference,
    stack_table::{Entry, FrameKind, HEAD_BYTES, Head},
};

use crate::machine;

const ROUNDS: usize = 5;
const BLOCKS: u64 = 2_000_000;
/// So that two million blocks make a gigabyte.
const SLOT_BYTES: u64 = 512;
const HEAP: u64 = 0x5600_0000_0000;
const PROGRAM: u64 = 0x5500_0000_0000;
const TABLE: u64 = 0x7f00_0000_0000;
const STACKS: u32 = 20_000;
const ADDRESSES: u64 = 20_000;
const FRAMES: u32 = 16;

/// Runs all parts. `gibibytes` is the size of the image that is searched; ten times a gigabyte of
/// random bytes are searched for false blocks, and the files named by `more` too.
pub(crate) fn run(cairn: &str, gibibytes: u64, more: &[&str]) -> Result<(), String> {
    let directory = std::env::temp_dir().join(format!("cairn-bench-core-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let result = run_in(&directory, cairn, gibibytes, more);
    let _ = std::fs::remove_dir_all(&directory);
    result
}

fn run_in(directory: &Path, cairn: &str, gibibytes: u64, more: &[&str]) -> Result<(), String> {
    print!("{}", machine::description());
    let failed = |error: std::io::Error| error.to_string();
    let core = directory.join("core");
    write_core(&core, Path::new(cairn)).map_err(failed)?;
    whole(cairn, &core)?;
    std::fs::remove_file(&core).map_err(failed)?;
    let image = directory.join("image");
    write_random(&image, gibibytes << 30, 1).map_err(failed)?;
    scan(&image)?;
    std::fs::remove_file(&image).map_err(failed)?;
    false_blocks(directory, more)
}

/// A sequence that repeats after 2^64 numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn write_random(path: &Path, bytes: u64, seed: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed);
    let mut piece = vec![0_u8; 1 << 20];
    for _ in 0..bytes >> 20 {
        for word in piece.as_chunks_mut::<8>().0 {
            *word = random.next().to_le_bytes();
        }
        file.write_all(&piece)?;
    }
    Ok(())
}

/// CPU seconds of this process, or of its children.
fn cpu_seconds(who: libc::c_int) -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the struct, for which zeros are a value too.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn open_raw(path: &Path) -> Result<Image, String> {
    let file = RawFile { path: path.to_owned(), load_address: AbsoluteAddress::new(HEAP) };
    Image::open_raw(&[file], Machine::default(), &OpenOptions::default()).map_err(|error| error.to_string())
}

/// Searches in turn for all layouts, for each, and with memchr, through the same windows.
fn scan(path: &Path) -> Result<(), String> {
    let image = open_raw(path)?;
    let bytes = image.dumped_bytes() as f64;
    let find = |options: FindOptions| -> usize { Annotated::find(&image, &options).blocks().len() };
    let finder = memchr::memmem::Finder::new(b"cairn annotates\n");
    let memchr = || {
        let mut found = 0;
        image.scan_writable(512 << 10, 1024, |_, window, _| found += finder.find_iter(window).count());
        found
    };
    let cases: [(&str, &dyn Fn() -> usize); 6] = [
        ("all three layouts", &|| find(FindOptions::default())),
        ("cairn", &|| find(FindOptions::only(BlockLayout::Cairn))),
        ("heapprof", &|| find(FindOptions::only(BlockLayout::Heapprof))),
        ("lws", &|| find(FindOptions::only(BlockLayout::Lws))),
        ("memchr::memmem, one needle", &memchr),
        ("windows alone", &|| {
            let mut sum = 0;
            image.scan_writable(512 << 10, 1024, |_, window, _| sum += window.len());
            std::hint::black_box(sum)
        }),
    ];
    let mut times: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); cases.len()];
    for _ in 0..=ROUNDS {
        for ((_, case), times) in cases.iter().zip(&mut times) {
            let (wall, cpu) = (Instant::now(), cpu_seconds(libc::RUSAGE_SELF));
            std::hint::black_box(case());
            times.0.push(wall.elapsed().as_secs_f64());
            times.1.push(cpu_seconds(libc::RUSAGE_SELF) - cpu);
        }
    }
    println!(
        "\nsearch of {:.2} GB of random bytes in the page cache, one thread, medians of {ROUNDS} rounds\n",
        bytes / 1e9
    );
    println!("| search for | GB/s of CPU time | GB/s of wall time |\n|---|---:|---:|");
    for ((name, _), (wall, cpu)) in cases.iter().zip(times) {
        // The first round filled the page cache.
        let rate = |times: Vec<f64>| bytes / 1e9 / median(times.into_iter().skip(1).collect());
        println!("| {name} | {:.2} | {:.2} |", rate(cpu), rate(wall));
    }
    Ok(())
}

/// Times `cairn core` on the core, symbols included.
fn whole(cairn: &str, core: &Path) -> Result<(), String> {
    let cases: [(&str, &[&str]); 4] = [
        ("report", &[]),
        ("report, no symbols", &["--no-symbols"]),
        ("--leaks", &["--leaks"]),
        ("--json", &["--json"]),
    ];
    let bytes = std::fs::metadata(core).map_or(0, |metadata| metadata.len());
    println!(
        "\n`cairn core` on a core of {:.2} GB with {BLOCKS} blocks of {STACKS} stacks; medians of {ROUNDS}\n",
        bytes as f64 / 1e9
    );
    println!("| question | wall s | CPU s | peak MB |\n|---|---:|---:|---:|");
    for (name, arguments) in cases {
        let (mut walls, mut cpus, mut peak) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            let (wall, cpu) = (Instant::now(), cpu_seconds(libc::RUSAGE_CHILDREN));
            let mut child = Command::new(cairn)
                .arg("core")
                .args(arguments)
                .arg(core)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| format!("{cairn}: {error}"))?;
            let status = format!("/proc/{}/status", child.id());
            loop {
                let text = std::fs::read_to_string(&status).unwrap_or_default();
                let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
                let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
                peak = peak.max(kilobytes.unwrap_or(0));
                if child.try_wait().map_err(|error| error.to_string())?.is_some() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            walls.push(wall.elapsed().as_secs_f64());
            cpus.push(cpu_seconds(libc::RUSAGE_CHILDREN) - cpu);
        }
        println!("| {name} | {:.2} | {:.2} | {} |", median(walls), median(cpus), peak / 1000);
    }
    Ok(())
}

fn false_blocks(directory: &Path, more: &[&str]) -> Result<(), String> {
    println!(
        "\nblocks found where none are\n\n| memory | GB | cairn | heapprof | lws |\n|---|---:|---:|---:|---:|"
    );
    let row = |name: &str, paths: &mut dyn Iterator<Item = Result<PathBuf, String>>| -> Result<(), String> {
        let (mut bytes, mut counts) = (0, [0; 3]);
        for path in paths {
            let path = path?;
            let options = OpenOptions::default();
            // Cores are searched as cores, everything else byte for byte.
            let image = match Image::open(&path, &options) {
                Ok(image) => image,
                Err(_) => open_raw(&path)?,
            };
            let found = Annotated::find(&image, &FindOptions::default());
            bytes += found.scanned_bytes();
            for block in found.blocks() {
                match block.layout {
                    Some(BlockLayout::Cairn) => counts[0] += 1,
                    Some(BlockLayout::Heapprof) => counts[1] += 1,
                    _ => counts[2] += 1,
                }
            }
        }
        println!("| {name} | {:.2} | {} | {} | {} |", bytes as f64 / 1e9, counts[0], counts[1], counts[2]);
        Ok(())
    };
    let random = directory.join("random");
    row(
        "random bytes",
        &mut (0..10).map(|seed| {
            write_random(&random, 1 << 30, 100 + seed).map_err(|error| error.to_string())?;
            Ok(random.clone())
        }),
    )?;
    let _ = std::fs::remove_file(&random);
    if !more.is_empty() {
        row("files given", &mut more.iter().map(|path| Ok(PathBuf::from(path))))?;
    }
    Ok(())
}

/// Returns a core of the `cairn` program itself. It is as the kernel would write it, except for the
/// contents of the heap.
fn write_core(path: &Path, program: &Path) -> std::io::Result<()> {
    let elf = std::fs::read(program)?;
    let program = std::fs::canonicalize(program)?;
    let at16 = |at: usize| u16::from_le_bytes([elf[at], elf[at + 1]]);
    let at64 = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap_or_default());
    let (table, count) = (at64(32) as usize, usize::from(at16(56)));
    // Flags, file offset, address, bytes in the file of each loaded segment, in whole pages.
    let loads: Vec<(u32, u64, u64, u64)> = (0..count)
        .map(|index| table + index * 56)
        .filter(|&at| elf[at] == 1)
        .map(|at| {
            let flags = u32::from(elf[at + 4]);
            let (offset, address, bytes) = (at64(at + 8), at64(at + 16), at64(at + 32));
            let slack = address % 4096;
            (flags, offset - slack, PROGRAM + address - slack, (bytes + slack).next_multiple_of(4096))
        })
        .collect();
    let code = loads.iter().find(|load| load.0 & 1 != 0).copied().unwrap_or_default();

    let mut files: Vec<u8> = Vec::new();
    let mut names: Vec<u8> = Vec::new();
    for word in [loads.len() as u64, 4096] {
        files.extend(word.to_le_bytes());
    }
    for &(_, offset, address, bytes) in &loads {
        for word in [address, address + bytes, offset / 4096] {
            files.extend(word.to_le_bytes());
        }
        names.extend(program.as_os_str().as_encoded_bytes());
        names.push(0);
    }
    files.extend(names);
    let mut note: Vec<u8> = Vec::new();
    for word in [5, files.len() as u32, 0x4649_4c45] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"CORE\0\0\0\0");
    note.extend(&files);
    note.resize(note.len().next_multiple_of(4), 0);

    let table_bytes = table_image(code.2, code.3);
    let heap_bytes = BLOCKS * SLOT_BYTES;
    let header_page = &elf[..4096];
    let segments = 1 + loads.len() + 2;
    let notes_at = 64 + 56 * segments;
    let mut at = ((notes_at + note.len()) as u64).next_multiple_of(4096);
    let body_at = at;
    let mut headers = Vec::new();
    let mut header = |kind: u32, flags: u32, offset: u64, address: u64, file: u64, memory: u64| {
        headers.extend(kind.to_le_bytes());
        headers.extend(flags.to_le_bytes());
        for word in [offset, address, 0, file, memory, 4096] {
            headers.extend(word.to_le_bytes());
        }
    };
    header(4, 0, notes_at as u64, 0, note.len() as u64, 0);
    for (index, &(flags, _, address, bytes)) in loads.iter().enumerate() {
        // The kernel writes the first page of a file, and not what can be read from it again.
        let dumped = if index == 0 { 4096 } else { 0 };
        header(1, flags & !2, at, address, dumped, bytes);
        at += dumped;
    }
    header(1, 6, at, HEAP, heap_bytes, heap_bytes);
    at += heap_bytes;
    header(1, 6, at, TABLE, table_bytes.len() as u64, table_bytes.len() as u64);

    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut start = b"\x7fELF\x02\x01\x01".to_vec();
    start.resize(16, 0);
    for half in [4_u16, 62] {
        start.extend(half.to_le_bytes());
    }
    start.extend(1_u32.to_le_bytes());
    for word in [0_u64, 64, 0] {
        start.extend(word.to_le_bytes());
    }
    start.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, segments as u16, 0, 0, 0] {
        start.extend(half.to_le_bytes());
    }
    start.extend(headers);
    start.extend(note);
    start.resize(body_at as usize, 0);
    file.write_all(&start)?;
    file.write_all(header_page)?;
    write_heap(&mut file)?;
    file.write_all(&table_bytes)?;
    file.flush()
}

fn write_heap(file: &mut impl Write) -> std::io::Result<()> {
    let mut random = Random(7);
    let mut slot = vec![0_u8; SLOT_BYTES as usize];
    for index in 0..BLOCKS {
        let user = HEAP + index * SLOT_BYTES + 32;
        let size = 16 + random.below(440);
        // A few stacks hold most of the blocks.
        let stack = random.below(u64::from(STACKS)).min(random.below(u64::from(STACKS))) as u32;
        let reference = StackReference::Number((stack + 1) * FRAMES);
        let header = Header::new(size, reference, 4, false)
            .map(|header| header.to_bytes(user, ByteOrder::LittleEndian));
        for word in slot.as_chunks_mut::<8>().0 {
            *word = random.next().to_le_bytes();
        }
        // Each block leads to another one.
        let other = HEAP + random.below(BLOCKS) * SLOT_BYTES + 32;
        slot[16..32].copy_from_slice(&header.unwrap_or_default());
        slot[32..40].copy_from_slice(&other.to_le_bytes());
        file.write_all(&slot)?;
    }
    Ok(())
}

/// Returns an anchor and a stack table after it. Each stack has [`FRAMES`] frames, anywhere in the
/// program's code.
fn table_image(code: u64, code_bytes: u64) -> Vec<u8> {
    let order = ByteOrder::LittleEndian;
    let end = (STACKS + 1) * FRAMES + 1;
    let log2 = end.next_power_of_two().ilog2();
    let head_at = ANCHOR_BYTES as u64;
    let entries_at = head_at + HEAD_BYTES as u64 + 8;
    let anchor = Anchor {
        layout: BlockLayout::Cairn,
        own_address: TABLE,
        parameter: 0,
        lists_address: 0,
        list_count: 0,
        list_stride_bytes: 0,
        stack_table_address: TABLE + head_at,
    };
    let mut bytes = anchor.to_bytes(order).to_vec();
    bytes.extend(Head { segment_entries_log2: log2, end, segment_count: 1 }.to_bytes(order));
    bytes.extend((TABLE + entries_at).to_le_bytes());
    let mut random = Random(3);
    let addresses: Vec<u64> = (0..ADDRESSES).map(|_| code + random.below(code_bytes)).collect();
    for number in 0..end {
        let is_outermost = number % FRAMES == 1;
        let address = addresses[random.below(ADDRESSES) as usize];
        let parent = if is_outermost || number == 0 { 0 } else { number - 1 };
        bytes.extend(Entry { address, parent, kind: FrameKind::ReturnAddress }.to_bytes(order));
    }
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}
