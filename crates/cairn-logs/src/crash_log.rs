//! Swift's JSON crash logs, as `swift-backtrace` writes them with `format=json`.
//!
//! The format is described in the section "JSON crash logs" of `docs/Backtracing.rst` in Swift's
//! repository. [`read`] takes one log; [`ObjectGatherer`] finds logs between other lines.

mod fields;
mod gather;

use std::fmt;

use cairn_format::{AbsoluteAddress, Frame, ModuleOffset, WordSize};
use cairn_wire::swift_json;
use serde::Deserialize;

use crate::decode::{Format, Image, ImageMap, StackRecord};
use fields::{Bad, Field, Hexadecimal};
pub use gather::{Gathered, GatheredText, ObjectGatherer};

/// The longest log that is read. A stack that recursion has filled (8 MiB, 48 bytes a frame) is 60
/// MB of JSON when the limit of frames is off.
pub const MAX_BYTES: usize = 64 << 20;

/// Faults that are listed one by one; further ones are counted.
const MAX_FAULTS: usize = 32;

/// Messages of the JSON parser repeat parts of the input; this many characters of them are enough.
const MAX_MESSAGE_CHARS: usize = 200;

/// One crash of a Swift program.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct CrashLog {
    /// Time of the crash, as ISO 8601 has it.
    pub timestamp: Option<Box<str>>,
    /// Description of the crash or runtime failure.
    pub description: Option<Box<str>>,
    /// The address of the fault.
    pub fault_address: Option<AbsoluteAddress>,
    /// The platform and its version.
    pub platform: Option<Box<str>>,
    /// Name of the processor architecture.
    pub architecture: Option<Box<str>>,
    /// The threads of the log.
    pub threads: Vec<CrashThread>,
    /// Number of threads that the log leaves out.
    pub omitted_threads: u64,
    /// Captured memory, by address.
    pub memory: Vec<CrashMemory>,
    /// Number of images that the log leaves out, where it says so.
    pub omitted_images: Option<u64>,
    /// The images; `None` when the log has no list of them.
    pub images: Option<Vec<CrashImage>>,
    /// Time that `swift-backtrace` took, in seconds.
    pub backtrace_seconds: Option<f64>,
    /// The first fields whose values are missing or wrong.
    pub faults: Vec<CrashFault>,
    /// Number of further such fields.
    pub further_faults: u64,
}

/// One thread of a crash log.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "fields::RawThread")]
#[non_exhaustive]
pub struct CrashThread {
    /// Its name.
    pub name: Option<Box<str>>,
    /// True for the thread that crashed.
    pub crashed: bool,
    /// Its registers in the order of the log; `None` for a value that is not hexadecimal.
    pub registers: Vec<(Box<str>, Option<u64>)>,
    /// Its frames, innermost first; an inlined one comes before the one that it is inlined into.
    pub frames: Vec<CrashFrame>,
    bad: u16,
}

/// One frame of a crash log.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "fields::RawFrame")]
#[non_exhaustive]
pub struct CrashFrame {
    /// Kind and address; `None` when the log states them wrongly, which is one of its faults.
    pub frame: Option<Frame>,
    /// True when the compiler put this function's body into the next frame's function.
    pub inlined: bool,
    /// True for a failure that the Swift runtime has found.
    pub runtime_failure: bool,
    /// True for a thunk, which the compiler has made.
    pub thunk: bool,
    /// True for a frame of the runtime or of the compiler.
    pub system: bool,
    /// The names of the frame, where the log has some.
    pub symbol: Option<Box<CrashSymbol>>,
    bad: u16,
}

/// The names that a crash log has for a frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CrashSymbol {
    /// Name as the linker knows it.
    pub raw_name: Option<Box<str>>,
    /// Distance of the frame's address from the symbol.
    pub offset: Option<i64>,
    /// Readable name with the offset.
    pub description: Option<Box<str>>,
    /// Name of the image that holds the symbol.
    pub image: Option<Box<str>>,
    /// Source location.
    pub location: Option<CrashLocation>,
}

/// A source location of a crash log.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CrashLocation {
    /// Path of the source file.
    pub file: Box<str>,
    /// Line, from 1.
    pub line: Option<u64>,
    /// Column, from 1.
    pub column: Option<u64>,
}

/// One image of a crash log.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "fields::RawImage")]
#[non_exhaustive]
pub struct CrashImage {
    /// Its name.
    pub name: Option<Box<str>>,
    /// The id of its build.
    pub build_id: Option<Box<[u8]>>,
    /// Its path.
    pub path: Option<Box<str>>,
    /// Its first address; `None` when the log states it wrongly.
    pub base: Option<AbsoluteAddress>,
    /// The address after its code; `None` when the log states it wrongly.
    pub end_of_text: Option<AbsoluteAddress>,
    bad: u16,
}

/// Memory that a register pointed to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CrashMemory {
    /// Where it was.
    pub address: AbsoluteAddress,
    /// The value found.
    pub bytes: Box<[u8]>,
}

/// A field whose value is missing or wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CrashFault {
    /// Where it is, as `thread 0, frame 3`; empty for a field of the log itself.
    pub place: String,
    /// The fault.
    pub problem: String,
}

impl fmt::Display for CrashFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, problem } = self;
        let border = if place.is_empty() { "" } else { ": " };
        write!(f, "bad crash log: {place}{border}{problem}")
    }
}

/// Why a text is no crash log.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CrashLogError {
    /// It is longer than [`MAX_BYTES`].
    TooLong,
    /// It is not JSON, or its threads, frames or images are not where they belong.
    Json {
        /// Line in the text, from 1.
        line: usize,
        /// Column in the line, from 1; 0 for the end of the line before.
        column: usize,
        /// The problem.
        message: String,
    },
    /// Its kind is another one.
    OtherKind {
        /// Which one.
        kind: String,
    },
}

impl fmt::Display for CrashLogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a crash log of more than {} MiB is not read", MAX_BYTES >> 20),
            Self::Json { line, column, message } => {
                write!(f, "bad crash log: {message}, at line {line}, column {column} of the log")
            }
            Self::OtherKind { kind } => {
                write!(f, "a report of kind {kind:?}; only crash logs, of kind \"crashReport\", are read")
            }
        }
    }
}

impl std::error::Error for CrashLogError {}

/// Tells whether a text is, or was before it was damaged, a crash log of Swift.
///
/// ```
/// use cairn_logs::crash_log::is_crash_log;
/// assert!(is_crash_log(br#"{ "kind": "crashReport", "threads": [] }"#));
/// assert!(is_crash_log(br#"{ "timestamp": "2025", "kind": "crashReport", "thr"#));
/// assert!(!is_crash_log(br#"{ "message": "a \"crashReport\" of kind", "kind": "note" }"#));
/// ```
#[must_use]
pub fn is_crash_log(text: &[u8]) -> bool {
    if memchr::memmem::find(text, b"\"crashReport\"").is_none() {
        return false;
    }
    match serde_json::from_slice::<fields::Sign>(text) {
        Ok(sign) => sign.kind == Field::Value("crashReport".into()),
        Err(_) => true,
    }
}

/// Reads one crash log.
///
/// Values that are missing or wrong are [faults](CrashLog::faults) of the log, not errors. Unknown
/// fields are skipped.
///
/// ```
/// use cairn_logs::crash_log::read;
/// use cairn_format::{AbsoluteAddress, Frame};
///
/// let log = read(br#"{ "timestamp": "2025-03-27T11:12:13Z", "kind": "crashReport",
///     "description": "Bad pointer dereference", "faultAddress": "0x0000000000000004",
///     "platform": "linux (Ubuntu 22.04.5 LTS)", "architecture": "x86_64",
///     "threads": [ { "crashed": true, "frames": [
///         { "kind": "programCounter", "address": "0x0000560000001804" } ] } ] }"#)?;
/// assert_eq!(log.description.as_deref(), Some("Bad pointer dereference"));
/// let frame = &log.threads[0].frames[0];
/// assert_eq!(frame.frame, Some(Frame::ProgramCounter(AbsoluteAddress::new(0x5600_0000_1804))));
/// assert!(log.faults.is_empty());
/// # Ok::<(), cairn_logs::crash_log::CrashLogError>(())
/// ```
///
/// # Errors
///
/// The text is too long, is not JSON, or is of another kind.
pub fn read(text: &[u8]) -> Result<CrashLog, CrashLogError> {
    if text.len() > MAX_BYTES {
        return Err(CrashLogError::TooLong);
    }
    let log: fields::Log = serde_json::from_slice(text).map_err(json_error)?;
    let mut faults = Faults::default();
    match log.kind {
        Field::Value(kind) if &*kind != "crashReport" => {
            return Err(CrashLogError::OtherKind { kind: shortened(&kind) });
        }
        kind => _ = faults.required("kind", "a text", kind),
    }
    let address = |Hexadecimal(value)| AbsoluteAddress::new(value);
    let hexadecimal = "a hexadecimal text such as \"0x1f40\"";
    let mut read = CrashLog {
        timestamp: faults.required("timestamp", "a text", log.timestamp),
        description: faults.required("description", "a text", log.description),
        fault_address: faults.required("faultAddress", hexadecimal, log.fault_address).map(address),
        platform: faults.required("platform", "a text", log.platform),
        architecture: faults.required("architecture", "a text", log.architecture),
        threads: log.threads,
        omitted_threads: faults
            .optional("omittedThreads", "a number of threads", log.omitted_threads)
            .unwrap_or(0),
        memory: log.captured_memory.pieces,
        omitted_images: faults.optional("omittedImages", "a number of images", log.omitted_images),
        images: log.images,
        backtrace_seconds: faults
            .optional("backtraceTime", "a number of seconds", log.backtrace_time)
            .filter(|seconds| seconds.is_finite()),
        faults: Vec::new(),
        further_faults: 0,
    };
    if let Some(key) = log.captured_memory.first_bad {
        let count = log.captured_memory.bad;
        faults.add(String::new, || {
            format!(
                "{count} entries of \"capturedMemory\" are not an address with 0x and hexadecimal digits without; \
                 the first is {:?}",
                shortened(&key)
            )
        });
    }
    read.check(&mut faults);
    (read.faults, read.further_faults) = (faults.listed, faults.further);
    Ok(read)
}

fn json_error(error: serde_json::Error) -> CrashLogError {
    let (line, column) = (error.line(), error.column());
    // The parser puts the place after its message.
    let message = error.to_string();
    let place = format!(" at line {line} column {column}");
    let message = shortened(message.strip_suffix(&place).unwrap_or(&message));
    CrashLogError::Json { line, column, message }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Faults as they are found.
#[derive(Default)]
struct Faults {
    listed: Vec<CrashFault>,
    further: u64,
}

impl Faults {
    fn add(&mut self, place: impl FnOnce() -> String, problem: impl FnOnce() -> String) {
        if self.listed.len() < MAX_FAULTS {
            self.listed.push(CrashFault { place: place(), problem: problem() });
        } else {
            self.further += 1;
        }
    }

    fn required<T>(&mut self, key: &str, wanted: &str, field: Field<T>) -> Option<T> {
        if matches!(field, Field::Absent) {
            self.add(String::new, || format!("there is no \"{key}\""));
        }
        self.optional(key, wanted, field)
    }

    fn optional<T>(&mut self, key: &str, wanted: &str, field: Field<T>) -> Option<T> {
        match field {
            Field::Value(value) => return Some(value),
            Field::Absent => {}
            Field::Bad => self.add(String::new, || format!("\"{key}\" is not {wanted}")),
        }
        None
    }

    fn bits(&mut self, bits: u16, place: impl Fn() -> String) {
        for bad in Bad::ALL.into_iter().filter(|bad| bad.is_in(bits)) {
            self.add(&place, || bad.problem().to_owned());
        }
    }
}

impl CrashLog {
    /// Lists the faults of its parts.
    fn check(&self, faults: &mut Faults) {
        for (number, thread) in self.threads.iter().enumerate() {
            let place = || format!("thread {number}");
            faults.bits(thread.bad, place);
            for (name, _) in thread.registers.iter().filter(|(_, value)| value.is_none()) {
                faults.add(place, || {
                    format!("register {:?} is not a hexadecimal text such as \"0x1f40\"", shortened(name))
                });
            }
            for (index, frame) in thread.frames.iter().enumerate() {
                faults.bits(frame.bad, || format!("thread {number}, frame {index}"));
            }
        }
        for (number, image) in self.images.iter().flatten().enumerate() {
            let place = || format!("image {number}");
            faults.bits(image.bad, place);
            if let (Some(base), Some(end)) = (image.base, image.end_of_text)
                && end < base
            {
                faults.add(place, || format!("its text ends at {end}, before its base, {base}"));
            }
        }
    }

    /// Returns the images by their addresses.
    #[must_use]
    pub fn images_by_address(&self) -> CrashImages<'_> {
        let range = |image: &'_ CrashImage| Some((image.base?, image.end_of_text?));
        let images = self.images.iter().flatten();
        let mut ranges: Vec<_> = images
            .enumerate()
            .filter_map(|(index, image)| range(image).map(|(base, end)| (base, end, index)))
            .collect();
        ranges.sort_unstable();
        CrashImages { images: self.images.as_deref().unwrap_or_default(), ranges }
    }

    /// Width of an address, by the architecture's name; 64 bits for an unknown one.
    #[must_use]
    pub fn word_size(&self) -> WordSize {
        let architecture = self.architecture.as_deref().unwrap_or_default();
        swift_json::word_size_of(architecture).unwrap_or(WordSize::Bits64)
    }

    /// Returns the images as a list that other formats hold, if the log has one.
    #[must_use]
    pub fn image_map(&self) -> Option<ImageMap> {
        let images = self.images.as_deref()?.iter().filter_map(|image| {
            Some(Image {
                base: image.base?,
                end_of_text: image.end_of_text?,
                build_id: image.build_id.as_deref().map(<[u8]>::to_vec),
                path: image.path.as_deref().or(image.name.as_deref()).map(str::to_owned),
            })
        });
        Some(ImageMap {
            platform: self.platform.as_deref().unwrap_or_default().to_owned(),
            word_size: self.word_size(),
            images: images.collect(),
            faults: Vec::new(),
        })
    }

    /// Returns the stack of one of its threads, for other formats.
    ///
    /// A call that was inlined has no address of its own, and is not part of it. It has no images:
    /// [`image_map`](Self::image_map) has them.
    #[must_use]
    pub fn stack(&self, thread: &CrashThread) -> StackRecord {
        let mut record = StackRecord::new(Format::SwiftJson, self.word_size());
        record.architecture = self.architecture.as_deref().map(str::to_owned);
        let next = thread.frames.iter().map(Some).skip(1).chain([None]);
        for (frame, next) in thread.frames.iter().zip(next) {
            let is_part = frame.inlined && next.is_some_and(|next| next.frame == frame.frame);
            if let Some(frame) = frame.frame
                && !is_part
            {
                record.runs.push((frame, 1));
            }
        }
        record
    }
}

/// The images of a crash log, to be found by address.
#[derive(Clone, Debug)]
pub struct CrashImages<'a> {
    images: &'a [CrashImage],
    /// Base, end and index, by base.
    ranges: Vec<(AbsoluteAddress, AbsoluteAddress, usize)>,
}

impl<'a> CrashImages<'a> {
    /// Returns the image that a frame's address lies in, and the offset of the address from its
    /// base.
    #[must_use]
    pub fn find(&self, frame: Frame) -> Option<(&'a CrashImage, ModuleOffset)> {
        // The byte before a return address: a call may be the last instruction of an image.
        let searched = frame.lookup_address()?;
        let before = self.ranges.partition_point(|&(base, ..)| base <= searched);
        let &(base, end, index) = self.ranges.get(before.checked_sub(1)?)?;
        let offset = frame.address()?.value().checked_sub(base.value())?;
        (searched < end).then(|| Some((self.images.get(index)?, ModuleOffset::new(offset)))).flatten()
    }
}
